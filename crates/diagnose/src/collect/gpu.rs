//! The state of the devices: clocks, throttling, memory, and who computes on them. Read from what `nvidia-smi` prints.

use serde::{Deserialize, Serialize};

use super::gpu_tables;

/// One look at the devices.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct GpuSnapshot {
    /// The devices.
    pub gpus: Vec<Gpu>,
    /// Processes on them.
    pub processes: Vec<GpuProcess>,
    /// Driver version.
    pub driver: Option<String>,
}

/// One device.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Gpu {
    /// Its name.
    pub name: Option<String>,
    /// Utilisation, 0 to 1.
    pub utilization: Option<f64>,
    /// Memory in use, MiB.
    pub memory_used_mib: Option<f64>,
    /// Memory, MiB.
    pub memory_total_mib: Option<f64>,
    /// Temperature, °C.
    pub temperature_c: Option<f64>,
    /// Power drawn, W.
    pub power_w: Option<f64>,
    /// Power limit, W.
    pub power_limit_w: Option<f64>,
    /// Clock of the arithmetic, MHz.
    pub sm_mhz: Option<f64>,
    /// Clock of the memory, MHz.
    pub memory_mhz: Option<f64>,
    /// Fan, 0 to 1.
    pub fan: Option<f64>,
    /// Active reasons that hold the clocks down.
    pub throttle: Vec<Throttle>,
}

/// Why clocks are held down.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Throttle {
    /// Power limit.
    PowerCap,
    /// Hardware slowdown.
    HwSlowdown,
    /// Hardware slowdown by heat.
    HwThermal,
    /// Hardware slowdown by the power supply.
    HwPowerBrake,
    /// Software slowdown by heat.
    SwThermal,
}

impl Throttle {
    /// In words.
    pub fn name(self) -> &'static str {
        match self {
            Throttle::PowerCap => "power cap",
            Throttle::HwSlowdown => "hardware slowdown",
            Throttle::HwThermal => "hardware thermal slowdown",
            Throttle::HwPowerBrake => "hardware power brake",
            Throttle::SwThermal => "software thermal slowdown",
        }
    }

    /// The reason by `nvidia-smi`'s label.
    pub(super) fn from_label(label: &str) -> Option<Throttle> {
        match label.to_ascii_lowercase().as_str() {
            "sw power cap" => Some(Throttle::PowerCap),
            "hw slowdown" => Some(Throttle::HwSlowdown),
            "hw thermal slowdown" => Some(Throttle::HwThermal),
            "hw power brake slowdown" | "hw power braking" => Some(Throttle::HwPowerBrake),
            "sw thermal slowdown" => Some(Throttle::SwThermal),
            _ => None,
        }
    }

    /// The reasons in a bit mask.
    pub(super) fn from_mask(mask: u64) -> Vec<Throttle> {
        let bits = [
            (0x04, Throttle::PowerCap),
            (0x08, Throttle::HwSlowdown),
            (0x20, Throttle::SwThermal),
            (0x40, Throttle::HwThermal),
            (0x80, Throttle::HwPowerBrake),
        ];
        bits.into_iter().filter(|(bit, _)| mask & bit != 0).map(|(_, reason)| reason).collect()
    }
}

/// One process on a device.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct GpuProcess {
    /// Its id.
    pub pid: u64,
    /// Its program, one safe line.
    pub name: String,
    /// Device memory it holds, MiB.
    pub memory_mib: Option<f64>,
    /// Share of the device's arithmetic it uses, 0 to 1.
    pub utilization: Option<f64>,
}

impl GpuSnapshot {
    /// Reads any of the forms that `nvidia-smi` prints; `None` when the text is none of them.
    pub fn parse(text: &str) -> Option<GpuSnapshot> {
        let mut snapshot = GpuSnapshot::default();
        gpu_tables::query_text(text, &mut snapshot);
        gpu_tables::csv(text, &mut snapshot);
        gpu_tables::default_table(text, &mut snapshot);
        gpu_tables::process_monitor(text, &mut snapshot);
        (!snapshot.gpus.is_empty() || !snapshot.processes.is_empty()).then_some(snapshot)
    }

    /// Every reason that holds a clock down.
    pub fn throttle(&self) -> Vec<Throttle> {
        let mut reasons: Vec<Throttle> =
            self.gpus.iter().flat_map(|gpu| gpu.throttle.iter().copied()).collect();
        reasons.sort();
        reasons.dedup();
        reasons
    }

    /// Mean over the devices of one number.
    pub fn mean(&self, pick: impl Fn(&Gpu) -> Option<f64>) -> Option<f64> {
        let values: Vec<f64> = self.gpus.iter().filter_map(pick).collect();
        crate::stats::mean(&values)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_long_form() {
        let text = "==============NVSMI LOG==============\nDriver Version                                         : 580.95.05\nGPU 00000000:41:00.0\n    Product Name : NVIDIA X\n    Clocks Event Reasons\n        SW Power Cap                                   : Not Active\n        HW Slowdown                                    : Active\n            HW Thermal Slowdown                        : Active\n        SW Thermal Slowdown                            : Active\n    Temperature\n        GPU Current Temp                               : 92 C\n    GPU Power Readings\n        Average Power Draw                             : 171.44 W\n        Current Power Limit                            : 600.00 W\n    Clocks\n        SM                                             : 862 MHz\n        Memory                                         : 7001 MHz\n    Max Clocks\n        SM : 3000 MHz\n    Fan Speed                                          : 0 %\n    Processes\n        GPU instance ID : N/A\n        Process ID : 4242\n            Name : python train.py\n            Used GPU Memory : 20480 MiB\n";
        let snapshot = GpuSnapshot::parse(text).unwrap();
        let gpu = &snapshot.gpus[0];
        assert_eq!(
            snapshot.throttle(),
            [Throttle::HwSlowdown, Throttle::HwThermal, Throttle::SwThermal]
        );
        assert_eq!(
            (gpu.sm_mhz, gpu.memory_mhz, gpu.temperature_c, gpu.fan),
            (Some(862.0), Some(7001.0), Some(92.0), Some(0.0))
        );
        assert_eq!(
            (snapshot.processes[0].pid, snapshot.processes[0].memory_mib),
            (4242, Some(20_480.0))
        );
        assert_eq!(snapshot.driver.as_deref(), Some("580.95.05"));
    }

    #[test]
    fn the_csv_forms() {
        let with_header = "index, name, memory.total [MiB], memory.used [MiB], utilization.gpu [%], power.draw [W], clocks.sm [MHz], clocks_event_reasons.active\n0, NVIDIA RTX A6000, 49140 MiB, 41211 MiB, 97 %, 281.40 W, 1755 MHz, 0x0000000000000040\n1, NVIDIA RTX A6000, 49140 MiB, 11 MiB, 0 %, 20 W, 210 MHz, 0x0000000000000001\n";
        let snapshot = GpuSnapshot::parse(with_header).unwrap();
        assert_eq!(
            (snapshot.gpus.len(), snapshot.gpus[0].utilization, snapshot.throttle()),
            (2, Some(0.97), vec![Throttle::HwThermal])
        );
        let with_query = "NVIDIA GeForce RTX 3090, 580.95.05, 24576 MiB, 23318 MiB, 31 %, 61 C, 148.20 W, 350.00 W, 1905 MHz, 9751 MHz\n# query: name,driver_version,memory.total,memory.used,utilization.gpu,temperature.gpu,power.draw,power.limit,clocks.sm,clocks.mem\n";
        let snapshot = GpuSnapshot::parse(with_query).unwrap();
        assert_eq!(
            (snapshot.gpus[0].utilization, snapshot.gpus[0].memory_mhz),
            (Some(0.31), Some(9751.0))
        );
        let processes = "pid, process_name, used_gpu_memory [MiB]\n6610, python, 80000 MiB\n9001, /usr/bin/blender, 12000 MiB\n";
        assert_eq!(GpuSnapshot::parse(processes).unwrap().processes[1].name, "/usr/bin/blender");
    }

    #[test]
    fn the_table_form() {
        let text = "+-----------------------------------------------------------------------------------------+\n| NVIDIA-SMI 580.95.05              Driver Version: 580.95.05      CUDA Version: 13.0     |\n|   0  NVIDIA H100 80GB HBM3          On  |   00000000:41:00.0 Off |                    0 |\n| N/A   64C    P0            402W /  700W |   71234MiB /  81559MiB |     99%      Default |\n+-----------------------------------------------------------------------------------------+\n| Processes:                                                                              |\n|  GPU   GI   CI              PID   Type   Process name                        GPU Memory |\n|    0   N/A  N/A           22011      C   VLLM::EngineCore                      60000MiB |\n|    0   N/A  N/A           31337      C   python train.py                       11000MiB |\n+-----------------------------------------------------------------------------------------+\n";
        let snapshot = GpuSnapshot::parse(text).unwrap();
        assert_eq!(
            (snapshot.gpus[0].utilization, snapshot.gpus[0].memory_used_mib),
            (Some(0.99), Some(71_234.0))
        );
        assert_eq!(snapshot.processes.len(), 2);
        assert_eq!(
            (snapshot.processes[1].pid, snapshot.processes[1].name.as_str()),
            (31_337, "python train.py")
        );
        let pmon = "# gpu         pid   type     sm    mem    enc    dec    command\n# Idx           #    C/G      %      %      %      %    name\n    0      22011     C     61     40      -      -    VLLM::EngineCor\n    0      31337     C     38     20      -      -    python train.py\n";
        let snapshot = GpuSnapshot::parse(pmon).unwrap();
        assert_eq!((snapshot.processes.len(), snapshot.processes[1].utilization), (2, Some(0.38)));
        assert!(GpuSnapshot::parse("just text\nwith, commas\n").is_none());
    }
}
