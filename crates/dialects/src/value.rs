//! Values of settings: numbers, switches and words in one normal form, so that two configurations can be compared.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::factor::Factor;

/// A setting's value.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Value {
    /// A switch; shown as `on` and `off`.
    Bool(bool),
    /// A whole number.
    Int(i64),
    /// A real number.
    Float(f64),
    /// Anything else, already redacted.
    Text(String),
}

impl Value {
    /// Reads a bare word: `true`, `65536`, `64k`, `0.88`, or text.
    pub fn parse(text: &str) -> Value {
        let text = text.trim();
        match text {
            "true" | "True" | "on" | "yes" => return Value::Bool(true),
            "false" | "False" | "off" | "no" => return Value::Bool(false),
            _ => {}
        }
        if let Ok(n) = text.parse::<i64>() {
            return Value::Int(n);
        }
        let looks_numeric =
            text.starts_with(|c: char| c.is_ascii_digit() || matches!(c, '-' | '+' | '.'));
        if looks_numeric
            && let Ok(x) = text.parse::<f64>()
            && x.is_finite()
        {
            return Value::Float(x);
        }
        match human_size(text) {
            Some(n) => Value::Int(n),
            None => Value::Text(text.to_owned()),
        }
    }

    /// The value as a number; switches are 0 and 1.
    pub fn as_f64(&self) -> Option<f64> {
        match self {
            Value::Bool(b) => Some(f64::from(u8::from(*b))),
            Value::Int(n) => Some(*n as f64),
            Value::Float(x) => Some(*x),
            Value::Text(_) => None,
        }
    }

    /// The value as a whole number.
    pub fn as_i64(&self) -> Option<i64> {
        match self {
            Value::Int(n) => Some(*n),
            Value::Float(x) if x.fract() == 0.0 => Some(*x as i64),
            _ => None,
        }
    }

    /// The value as a switch.
    pub fn as_bool(&self) -> Option<bool> {
        match self {
            Value::Bool(b) => Some(*b),
            Value::Int(n) => Some(*n != 0),
            _ => None,
        }
    }

    /// The value as a word.
    pub fn as_str(&self) -> Option<&str> {
        match self {
            Value::Text(text) => Some(text),
            _ => None,
        }
    }

    /// Whether two values mean the same: `1` and `1.0` do.
    pub fn same(&self, other: &Value) -> bool {
        match (self.as_f64(), other.as_f64()) {
            (Some(a), Some(b)) => (a - b).abs() <= 1e-9 * a.abs().max(b.abs()),
            (None, None) => self == other,
            _ => false,
        }
    }
}

impl From<String> for Value {
    fn from(text: String) -> Value {
        Value::Text(text)
    }
}

impl From<&str> for Value {
    fn from(text: &str) -> Value {
        Value::Text(text.to_owned())
    }
}

impl fmt::Display for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Value::Bool(b) => f.write_str(if *b { "on" } else { "off" }),
            Value::Int(n) => write!(f, "{n}"),
            Value::Float(x) => write!(f, "{x}"),
            Value::Text(text) => f.write_str(text),
        }
    }
}

/// `64k` is 64 000 and `64K` is 65 536, as vLLM reads them.
fn human_size(text: &str) -> Option<i64> {
    let unit = match text.chars().last()? {
        'k' => 1_000.0,
        'm' => 1e6,
        'g' => 1e9,
        'K' => 1024.0,
        'M' => 1024.0 * 1024.0,
        'G' => 1024.0 * 1024.0 * 1024.0,
        _ => return None,
    };
    let number = &text[..text.len() - 1];
    if !number.starts_with(|c: char| c.is_ascii_digit()) {
        return None;
    }
    let value = number.parse::<f64>().ok()? * unit;
    (value.is_finite() && value.abs() < 9e15).then_some(value as i64)
}

/// Brings a word that an engine wrote for `factor` to the one form used in comparisons.
pub fn normalise(factor: Factor, text: &str) -> Value {
    let text = text.trim().trim_matches(['\'', '"']);
    let lower = text.to_ascii_lowercase();
    let word = |s: &str| Value::Text(s.to_owned());
    match factor {
        Factor::ModelDtype | Factor::MemStateDtype | Factor::MemKvDtype => {
            match lower.strip_prefix("torch.").unwrap_or(&lower) {
                "half" | "fp16" => word("float16"),
                "bf16" => word("bfloat16"),
                "float" | "fp32" => word("float32"),
                "f16" => word("float16"),
                "f32" => word("float32"),
                "fp8" => word("fp8_e4m3"),
                other => word(other),
            }
        }
        Factor::SpecMethod => match lower.as_str() {
            "nextn" | "mtp" | "draft-mtp" | "draft_mtp" | "qwen3_next_mtp" | "qwen3_5_mtp"
            | "deepseek_mtp" => word("mtp"),
            other => word(other),
        },
        Factor::ExecCudaGraph | Factor::ExecPrefillGraph => match lower.as_str() {
            "disabled" | "none" | "off" | "false" | "0" => Value::Bool(false),
            _ => Value::Bool(true),
        },
        Factor::ModelQuant => word(&lower),
        Factor::ModelPath | Factor::ModelServedName | Factor::SpecDraftModel => {
            word(text.trim_end_matches('/'))
        }
        Factor::GpuVisible | Factor::NetHost | Factor::EngineVersion => word(text),
        Factor::ExecAttention if lower == "on" || lower == "off" => word(&lower), // llama.cpp's `-fa on`
        Factor::SchedPolicy | Factor::CacheStateStrategy | Factor::ObsLogLevel => word(&lower),
        _ => Value::parse(text),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_become_values() {
        assert_eq!(Value::parse("64k"), Value::Int(64_000));
        assert_eq!(Value::parse("64K"), Value::Int(65_536));
        assert_eq!(Value::parse("0.88"), Value::Float(0.88));
        assert_eq!(Value::parse("-1"), Value::Int(-1));
        assert_eq!(Value::parse("True"), Value::Bool(true));
        assert_eq!(Value::parse("1m2"), Value::Text("1m2".into()));
        assert_eq!(Value::parse("inf"), Value::Text("inf".into()));
        assert!(Value::Int(1).same(&Value::Float(1.0)));
        assert!(!Value::Int(1).same(&Value::Text("1".into())));
    }

    #[test]
    fn engines_words_for_one_thing_agree() {
        assert_eq!(
            normalise(Factor::SpecMethod, "NEXTN"),
            normalise(Factor::SpecMethod, "draft-mtp")
        );
        assert_eq!(
            normalise(Factor::ModelDtype, "torch.bfloat16"),
            normalise(Factor::ModelDtype, "bf16")
        );
        assert_eq!(normalise(Factor::MemKvDtype, "fp8"), normalise(Factor::MemKvDtype, "fp8_e4m3"));
        assert_eq!(normalise(Factor::ExecCudaGraph, "disabled"), Value::Bool(false));
    }
}
