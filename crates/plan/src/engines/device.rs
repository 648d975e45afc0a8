//! The devices that an engine runs on, written as `2x48GiB@768GB/s`.

use std::fmt;
use std::str::FromStr;

use super::EngineError;

/// Equal devices of one machine.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Device {
    /// How many.
    pub count: usize,
    /// Memory of each in GiB.
    pub memory_gib: f64,
    /// Memory bandwidth of each in GB/s (10^9 bytes).
    pub bandwidth_gb_s: f64,
    /// Dense arithmetic of each in the weights' format, in 10^12 operations per second, if known.
    pub tflops: Option<f64>,
}

impl FromStr for Device {
    type Err = EngineError;

    /// `[Nx]MEMORY@BANDWIDTH[@COMPUTE]` with GiB, GB/s and TFLOPS as units.
    fn from_str(text: &str) -> Result<Device, EngineError> {
        parse(text).ok_or_else(|| EngineError::Syntax {
            what: "device",
            text: text.to_owned(),
            expected: "COUNTxMEMORY@BANDWIDTH[@COMPUTE], such as 2x48GiB@768GB/s@150TFLOPS",
        })
    }
}

fn parse(text: &str) -> Option<Device> {
    let text: String = text.split_whitespace().collect();
    let (count, rest) = match text.split_once(['x', 'X']) {
        Some((count, rest)) => (count.parse().ok()?, rest),
        None => (1, text.as_str()),
    };
    let mut parts = rest.split('@');
    let memory_gib = quantity(parts.next()?, &[("gib", 1.0), ("gb", 1.0), ("mib", 1.0 / 1024.0)])?;
    let bandwidth_gb_s = quantity(parts.next()?, &[("gb/s", 1.0), ("tb/s", 1000.0)])?;
    let tflops = match parts.next() {
        Some(part) => Some(quantity(part, &[("tflops", 1.0), ("pflops", 1000.0), ("tops", 1.0)])?),
        None => None,
    };
    let sane = count > 0 && parts.next().is_none();
    sane.then_some(Device { count, memory_gib, bandwidth_gb_s, tflops })
}

/// A positive number with one of the units, as a multiple of the first.
fn quantity(text: &str, units: &[(&str, f64)]) -> Option<f64> {
    let lower = text.to_ascii_lowercase();
    let (number, factor) = units
        .iter()
        .find_map(|(unit, factor)| lower.strip_suffix(unit).map(|number| (number, *factor)))?;
    let value = number.parse::<f64>().ok()? * factor;
    (value.is_finite() && value > 0.0).then_some(value)
}

impl fmt::Display for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}x{}GiB@{}GB/s", self.count, self.memory_gib, self.bandwidth_gb_s)?;
        match self.tflops {
            Some(tflops) => write!(f, "@{tflops}TFLOPS"),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Device;

    #[test]
    fn devices_read_back_as_written() {
        for text in ["2x48GiB@768GB/s", "1x96GiB@1800GB/s@250TFLOPS"] {
            assert_eq!(text.parse::<Device>().unwrap().to_string(), text);
        }
        let mig: Device = "24576MiB @ 3.35TB/s".parse().unwrap();
        let expected = Device { count: 1, memory_gib: 24.0, bandwidth_gb_s: 3350.0, tflops: None };
        assert_eq!(mig, expected);
    }

    #[test]
    fn what_is_not_a_device_is_refused() {
        for text in ["", "48GiB", "0x48GiB@768GB/s", "2x48@768", "2x48GiB@0GB/s", "axbGiB@cGB/s"] {
            assert!(text.parse::<Device>().is_err(), "{text}");
        }
    }
}
