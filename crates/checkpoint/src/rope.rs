//! Rotary frequencies, bit for bit as torch computes them in float32.

use serde_json::Value;

use crate::CheckpointError;
use crate::fields::Fields;

/// `(rotary_dim, inv_freq)` of a configuration: `inv_freq[j] = theta^(-2j / rotary_dim)`, with
/// llama3 scaling applied where the configuration asks for it.
pub(crate) fn read(
    text: Fields<'_>,
    head_dim: usize,
    defaults: Defaults,
) -> Result<(usize, Vec<f32>), CheckpointError> {
    // The nested object first, then the older flat entries beside it.
    let (rope, key) = match text.nested("rope_parameters")? {
        Some(nested) => (nested, "rope_parameters"),
        None => match text.nested("rope_scaling")? {
            Some(nested) => (nested, "rope_scaling"),
            None => (text, "rope_scaling"),
        },
    };
    if let Some(Value::Object(_)) = text.get(key)
        && rope.alone().get("full_attention").is_some()
    {
        return Err(text.error(format!("`{key}` differs per layer type; one for all is supported")));
    }
    let theta = match (rope.positive("rope_theta")?, text.positive("rope_theta")?) {
        (Some(theta), _) | (None, Some(theta)) => theta,
        (None, None) => defaults.theta.ok_or_else(|| text.error("`rope_theta` is missing"))?,
    };
    let factor = match rope.positive("partial_rotary_factor")? {
        Some(factor) => factor,
        None => text.positive("partial_rotary_factor")?.unwrap_or(defaults.partial_rotary_factor),
    };
    let rotary_dim = (head_dim as f64 * factor) as usize;
    if rotary_dim == 0 || rotary_dim > head_dim || rotary_dim % 2 == 1 {
        return Err(text.error(format!(
            "`partial_rotary_factor` {factor} of a head of {head_dim} rotates {rotary_dim} \
             channels; an even number up to {head_dim} is needed"
        )));
    }
    let mut inv_freq = inv_freq(theta, rotary_dim);
    // Legacy files call the type `type`. Without a nested object there is no type to read.
    let nested = text.get(key).is_some().then_some(rope.alone());
    let kind = match nested {
        Some(rope) => match rope.text("rope_type")? {
            Some(kind) => kind,
            None => rope.text("type")?.unwrap_or("default"),
        },
        None => "default",
    };
    match (kind, nested) {
        ("default", _) => {}
        ("llama3", Some(rope)) => Llama3::read(rope, key)?.scale(&mut inv_freq),
        (DIVIDED, Some(rope)) => divide(&mut inv_freq, rope, key)?,
        _ => {
            return Err(text.error(format!(
                "`{key}.rope_type` is \"{kind}\"; \"default\" and \"llama3\" are supported"
            )));
        }
    }
    Ok((rotary_dim, inv_freq))
}

/// The type of a rope whose every frequency is divided by an entry of `factors`: what GGUF files
/// hold of llama3 scaling.
pub(crate) const DIVIDED: &str = "divided";

fn divide(inv_freq: &mut [f32], rope: Fields<'_>, key: &str) -> Result<(), CheckpointError> {
    let factors = match rope.get("factors") {
        Some(Value::Array(list)) if list.len() == inv_freq.len() => list,
        other => {
            let n = other.and_then(Value::as_array).map_or(0, Vec::len);
            return Err(rope.error(format!(
                "`{key}.factors` has {n} entries; one for each of {} frequencies is needed",
                inv_freq.len()
            )));
        }
    };
    for (frequency, factor) in inv_freq.iter_mut().zip(factors) {
        match factor.as_f64().map(|x| x as f32).filter(|x| x.is_finite() && *x > 0.0) {
            Some(x) => *frequency /= x,
            None => return Err(rope.wrong(&format!("{key}.factors"), factor, "a number above 0")),
        }
    }
    Ok(())
}

/// What a family takes for absent entries; no `theta` means that it must be given.
#[derive(Clone, Copy)]
pub(crate) struct Defaults {
    pub(crate) theta: Option<f64>,
    pub(crate) partial_rotary_factor: f64,
}

/// torch: `1.0 / base ** (arange(0, dim, 2).float() / dim)`. A double-precision power rounded
/// once gives the same bits as torch's own float32 power (checked against the golden values).
fn inv_freq(theta: f64, rotary_dim: usize) -> Vec<f32> {
    let theta = f64::from(theta as f32);
    (0..rotary_dim / 2)
        .map(|j| {
            let exponent = (2 * j) as f32 / rotary_dim as f32;
            1.0 / libm::pow(theta, f64::from(exponent)) as f32
        })
        .collect()
}

/// Llama 3's stretching of the slow frequencies.
struct Llama3 {
    factor: f64,
    low: f64,
    high: f64,
    original: f64,
}

impl Llama3 {
    fn read(rope: Fields<'_>, key: &str) -> Result<Self, CheckpointError> {
        let number = |name: &str| {
            rope.positive(name)?
                .ok_or_else(|| rope.error(format!("`{key}.{name}` is missing (llama3 rope)")))
        };
        let scaling = Self {
            factor: number("factor")?,
            low: number("low_freq_factor")?,
            high: number("high_freq_factor")?,
            original: number("original_max_position_embeddings")?,
        };
        if scaling.high <= scaling.low {
            return Err(rope.error(format!(
                "`{key}.high_freq_factor` {} must be above `low_freq_factor` {}",
                scaling.high, scaling.low
            )));
        }
        Ok(scaling)
    }

    /// Every operation is a float32 operation in torch's order.
    fn scale(&self, inv_freq: &mut [f32]) {
        let (factor, low, original) = (self.factor as f32, self.low as f32, self.original as f32);
        let band = (self.high - self.low) as f32;
        let low_wavelength = (self.original / self.low) as f32;
        let high_wavelength = (self.original / self.high) as f32;
        for f in inv_freq {
            let wavelength = (2.0 * std::f64::consts::PI) as f32 / *f;
            *f = if wavelength > low_wavelength {
                *f / factor
            } else if wavelength < high_wavelength {
                *f
            } else {
                let smooth = (original / wavelength - low) / band;
                (1.0 - smooth) * *f / factor + smooth * *f
            };
        }
    }
}
