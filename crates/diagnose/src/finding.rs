//! What a rule says.

use dialects::{Factor, Value};
use plan::engines::speed::Range;
use serde_json::{Value as Json, json};

use crate::losses::Felt;

/// The verdict of one rule.
#[derive(Clone, Debug)]
pub enum Outcome {
    /// Looked at and not the cause.
    Pass,
    /// Something was found.
    Found(Box<Finding>),
    /// Cannot be judged; the text names what is missing.
    NotEnough(String),
}

/// A cause that a rule found.
#[derive(Clone, Debug)]
pub struct Finding {
    /// The factor to blame.
    pub factor: Factor,
    /// Other differences that belong to it and are not judged on their own.
    pub covers: Vec<Factor>,
    /// Its value before, as the report shows it.
    pub before: Json,
    /// Its value now.
    pub now: Json,
    /// A short name of the way in which it acts.
    pub id: &'static str,
    /// How it acts, in one sentence.
    pub mechanism: String,
    /// The losses that it explains, each with the share of it from 0 to 1.
    pub explains: Vec<(Felt, f64)>,
    /// 1 when the decisive evidence is there, 0.2 when it is missing.
    pub strength: f64,
    /// Lines of evidence for it, each with its source.
    pub evidence: Vec<String>,
    /// Lines of evidence against it.
    pub against: Vec<String>,
    /// What to change.
    pub fix: Option<Fix>,
    /// What the change should give.
    pub predicted: Option<Prediction>,
    /// What the change costs elsewhere.
    pub costs: Vec<String>,
    /// What the report claims with it, in the fewest words.
    pub claim: String,
}

impl Finding {
    /// An empty finding about a factor.
    pub fn new(factor: Factor) -> Finding {
        Finding {
            factor,
            covers: Vec::new(),
            before: Json::Null,
            now: Json::Null,
            id: "",
            mechanism: String::new(),
            explains: Vec::new(),
            strength: 1.0,
            evidence: Vec::new(),
            against: Vec::new(),
            fix: None,
            predicted: None,
            costs: Vec::new(),
            claim: String::new(),
        }
    }

    /// The largest share of any loss.
    pub fn share(&self) -> Option<f64> {
        self.explains.iter().map(|(_, share)| *share).reduce(f64::max)
    }
}

/// What to change.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Fix {
    /// Flags to set, with their values.
    pub set: Vec<(String, String)>,
    /// Flags to take away.
    pub unset: Vec<String>,
    /// Other ways to the same end.
    pub options: Vec<Vec<(String, String)>>,
    /// Things to do that are no flags.
    pub actions: Vec<String>,
    /// Whether the server must be started again.
    pub restart: bool,
}

impl Fix {
    /// The flags as they stand on a command line.
    pub fn command_line(&self) -> String {
        let mut parts: Vec<String> =
            self.set.iter().map(|(flag, value)| format!("{flag} {value}")).collect();
        parts.extend(self.unset.iter().map(|flag| format!("(without {flag})")));
        parts.join(" ")
    }

    /// The form of the JSON report.
    pub fn json(&self) -> Json {
        let object = |pairs: &[(String, String)]| -> Json {
            pairs
                .iter()
                .map(|(flag, value)| (flag.clone(), json!(value)))
                .collect::<serde_json::Map<_, _>>()
                .into()
        };
        json!({
            "set": object(&self.set),
            "unset": self.unset,
            "options": self.options.iter().map(|option| object(option)).collect::<Vec<_>>(),
            "actions": self.actions,
            "restart": self.restart,
        })
    }
}

/// What a change should give.
#[derive(Clone, Debug, PartialEq)]
pub struct Prediction {
    /// The number that should change, such as `decode_tok_s` or `aggregate_tok_s_c8`.
    pub metric: String,
    /// Where it should lie.
    pub range: Range,
    /// What the range rests on.
    pub basis: String,
}

/// A setting's value in the report: numbers as numbers, words as words, nothing where it was not set.
pub fn shown(value: Option<&Value>) -> Json {
    match value {
        None => Json::Null,
        Some(Value::Bool(on)) => json!(if *on { "on" } else { "off" }),
        Some(Value::Int(n)) => json!(n),
        Some(Value::Float(x)) => json!(x),
        Some(Value::Text(text)) => json!(text),
    }
}
