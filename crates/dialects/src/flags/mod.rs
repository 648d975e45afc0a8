//! Flag tables: what each engine calls each factor, in which versions, and what is assumed when it is not given.

mod llamacpp;
mod outrider;
mod sglang;
mod vllm;

use crate::engine::{Engine, Version};
use crate::factor::Factor;

/// One flag of one engine with all its spellings.
#[derive(Debug)]
pub struct Flag {
    /// Spellings, the newest first. Dotted names are keys inside a JSON flag.
    pub names: &'static [Name],
    /// What the flag sets.
    pub factor: Factor,
    /// How it takes its value.
    pub takes: Takes,
    /// What holds when the flag is absent, as far as one word says it for every version.
    pub default: Option<&'static str>,
}

/// One spelling and the versions that know it.
#[derive(Debug)]
pub struct Name {
    /// With its dashes, as on a command line.
    pub text: &'static str,
    /// First version (major, minor, patch) that takes this spelling.
    pub since: Option<(u32, u32, u32)>,
    /// First version that no longer takes it.
    pub until: Option<(u32, u32, u32)>,
}

/// How a flag takes its value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Takes {
    /// The next word, or the text after `=`.
    Value,
    /// Nothing; its presence turns the factor on (`true`) or off (`false`).
    Turns(bool),
    /// A word that may be missing; missing means on.
    Optional,
    /// A JSON object whose keys are dotted flags of the same table.
    Json,
    /// Any number of words up to the next flag.
    Many,
}

/// A spelling known to every version.
const fn n(text: &'static str) -> Name {
    Name { text, since: None, until: None }
}

/// A spelling known from a version on.
const fn since(text: &'static str, version: (u32, u32, u32)) -> Name {
    Name { text, since: Some(version), until: None }
}

/// A spelling that a version dropped.
const fn until(text: &'static str, version: (u32, u32, u32)) -> Name {
    Name { text, since: None, until: Some(version) }
}

const fn value(factor: Factor, default: Option<&'static str>, names: &'static [Name]) -> Flag {
    Flag { names, factor, takes: Takes::Value, default }
}

const fn turns(factor: Factor, to: bool, names: &'static [Name]) -> Flag {
    // A switch that is absent leaves the factor at the other side.
    Flag { names, factor, takes: Takes::Turns(to), default: Some(if to { "off" } else { "on" }) }
}

/// The flags of an engine.
pub fn table(engine: Engine) -> &'static [&'static [Flag]] {
    match engine {
        Engine::Sglang => &[sglang::FLAGS],
        Engine::Vllm => &[vllm::FLAGS],
        Engine::LlamaCpp => &[llamacpp::FLAGS],
        Engine::Outrider => &[outrider::FLAGS, sglang::FLAGS],
    }
}

/// Whether a flag outside the table is known to take no value.
pub fn is_plain_switch(engine: Engine, name: &str) -> bool {
    let switches = match engine {
        Engine::Sglang | Engine::Outrider => sglang::PLAIN_SWITCHES,
        Engine::Vllm => vllm::PLAIN_SWITCHES,
        Engine::LlamaCpp => llamacpp::PLAIN_SWITCHES,
    };
    let name = canonical_name(name);
    switches.iter().any(|switch| switch.text == name)
}

/// Environment variables of an engine that set a factor.
pub fn variables(engine: Engine) -> &'static [(&'static str, Factor)] {
    match engine {
        Engine::Sglang | Engine::Outrider => sglang::VARIABLES,
        Engine::Vllm => vllm::VARIABLES,
        Engine::LlamaCpp => llamacpp::VARIABLES,
    }
}

/// Environment variables that mean the same to every engine.
pub const COMMON_VARIABLES: &[(&str, Factor)] = &[
    ("CUDA_VISIBLE_DEVICES", Factor::GpuVisible),
    ("HIP_VISIBLE_DEVICES", Factor::GpuVisible),
    ("NVIDIA_VISIBLE_DEVICES", Factor::GpuVisible),
    ("CUDA_LAUNCH_BLOCKING", Factor::EnvBlocking),
    ("COMPUTE_SANITIZER", Factor::EnvBlocking),
    ("OMP_NUM_THREADS", Factor::ExecThreads),
];

/// The form in which names are compared: dashes for underscores after the leading dashes.
pub fn canonical_name(name: &str) -> String {
    let body = name.trim_start_matches('-');
    let dashes = name.len() - body.len();
    format!("{}{}", &name[..dashes], body.replace('_', "-"))
}

/// Finds the flag for a name as written; the second value is whether a `no-` prefix negates it.
pub fn lookup(engine: Engine, name: &str) -> Option<(&'static Flag, bool)> {
    let name = canonical_name(name);
    if let Some(flag) = find(engine, &name) {
        return Some((flag, false));
    }
    let positive = name.strip_prefix("--no-").map(|rest| format!("--{rest}"))?;
    let flag = find(engine, &positive)?;
    matches!(flag.takes, Takes::Turns(_) | Takes::Optional).then_some((flag, true))
}

fn find(engine: Engine, name: &str) -> Option<&'static Flag> {
    table(engine)
        .iter()
        .flat_map(|part| part.iter())
        .find(|flag| flag.names.iter().any(|n| n.text == name))
}

/// The first flag that sets a factor.
pub fn for_factor(engine: Engine, factor: Factor) -> Option<&'static Flag> {
    table(engine).iter().flat_map(|part| part.iter()).find(|flag| flag.factor == factor)
}

/// How this engine and version spells the flag for a factor, for the command that a report proposes.
pub fn spelling(engine: Engine, version: Option<&Version>, factor: Factor) -> Option<&'static str> {
    let flag = for_factor(engine, factor)?;
    let knows = |name: &&Name| match version {
        None => name.until.is_none(),
        Some(version) => {
            let old_enough = name.since.is_none_or(|(a, b, c)| version.at_least(a, b, c));
            let young_enough = name.until.is_none_or(|(a, b, c)| !version.at_least(a, b, c));
            old_enough && young_enough
        }
    };
    flag.names.iter().find(knows).or(flag.names.first()).map(|name| name.text)
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn no_spelling_means_two_things() {
        for engine in Engine::ALL {
            for part in table(engine) {
                let mut seen = HashSet::new();
                for flag in *part {
                    for name in flag.names {
                        assert!(seen.insert(name.text), "{engine}: {} is listed twice", name.text);
                        assert_eq!(canonical_name(name.text), name.text);
                        assert!(name.text.starts_with('-'), "{} needs its dashes", name.text);
                    }
                }
            }
        }
    }

    #[test]
    fn renamed_flags_are_one_option() {
        let factor = |name| lookup(Engine::Sglang, name).unwrap().0.factor;
        assert_eq!(factor("--mamba-scheduler-strategy"), factor("--mamba-radix-cache-strategy"));
        assert_eq!(factor("--mamba_radix_cache_strategy"), Factor::CacheStateStrategy);
        let old = Version::parse("0.5.10");
        let new = Version::parse("0.5.23");
        let spell =
            |v: &Option<Version>| spelling(Engine::Sglang, v.as_ref(), Factor::CacheStateStrategy);
        assert_eq!(spell(&old), Some("--mamba-scheduler-strategy"));
        assert_eq!(spell(&new), Some("--mamba-radix-cache-strategy"));
    }

    #[test]
    fn negated_switches_are_found() {
        let (flag, negated) = lookup(Engine::Vllm, "--no-enable-prefix-caching").unwrap();
        assert_eq!((flag.factor, negated), (Factor::CachePrefix, true));
        assert!(lookup(Engine::Vllm, "--no-such-flag").is_none());
    }
}
