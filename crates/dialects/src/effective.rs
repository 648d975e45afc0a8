//! What a configuration means once defaults and the engine's own rules are applied.

use std::collections::{BTreeMap, BTreeSet};

use crate::config::{Config, Difference, Key, Setting};
use crate::engine::{Engine, Version};
use crate::factor::Factor;
use crate::flags;
use crate::value::{Value, normalise};

/// Why an effective value is what it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Why {
    /// It was asked for.
    Asked,
    /// It was open and the engine stated what it made of it.
    Resolved,
    /// Nothing was asked; the engine's default.
    Default,
    /// The engine's rule changes or fills the value; the text says how.
    Rule(&'static str),
}

/// A value in force, and why.
#[derive(Clone, Debug, PartialEq)]
pub struct Effective {
    /// The value.
    pub value: Value,
    /// Why it holds.
    pub why: Why,
}

/// Every effective value that can be told from the configuration alone.
pub fn of(config: &Config) -> BTreeMap<Key, Effective> {
    let mut all: BTreeMap<Key, Effective> = BTreeMap::new();
    for (key, setting) in &config.settings {
        let why = if setting.resolved { Why::Resolved } else { Why::Asked };
        all.insert(key.clone(), Effective { value: setting.value.clone(), why });
    }
    for part in flags::table(config.engine) {
        for flag in *part {
            if let Some(default) = flag.default {
                let value = match normalise(flag.factor, default) {
                    Value::Text(word) if word == "on" || word == "off" => Value::Bool(word == "on"),
                    value => value,
                };
                all.entry(flag.factor.into()).or_insert(Effective { value, why: Why::Default });
            }
        }
    }
    match config.engine {
        Engine::Sglang => sglang_rules(config, &mut all),
        Engine::Outrider => outrider_rules(config, &mut all),
        Engine::Vllm => vllm_rules(config, &mut all),
        Engine::LlamaCpp => llamacpp_rules(config, &mut all),
    }
    all
}

/// The effective value of one factor.
pub fn get(config: &Config, factor: Factor) -> Option<Value> {
    of(config).remove(&Key::Known(factor)).map(|effective| effective.value)
}

/// Draft tokens that a SGLang server assumes when speculation is on and none of the three counts is given.
fn default_spec_counts(version: Option<&Version>) -> (i64, i64, i64) {
    match version {
        Some(version) if !version.at_least(0, 5, 6) => (5, 4, 8),
        _ => (3, 1, 4),
    }
}

/// The running limit that SGLang sets when speculation is on and no limit is given.
pub const SGLANG_SPEC_MAX_RUNNING: i64 = 48;

fn sglang_rules(config: &Config, all: &mut BTreeMap<Key, Effective>) {
    let rule = |value: Value, why: &'static str| Effective { value, why: Why::Rule(why) };
    let method = config.get(Factor::SpecMethod).and_then(Value::as_str).unwrap_or("none");
    if method == "none" {
        for factor in [Factor::SpecNumSteps, Factor::SpecTopk, Factor::SpecDraftTokens] {
            all.insert(
                factor.into(),
                rule(
                    Value::Int(if factor == Factor::SpecNumSteps { 0 } else { 1 }),
                    "no speculation",
                ),
            );
        }
        return;
    }
    let draft = config.get(Factor::SpecDraftModel);
    if method == "eagle" && (draft.is_none() || draft == config.get(Factor::ModelPath)) {
        all.insert(
            Factor::SpecMethod.into(),
            rule(
                Value::Text("mtp".into()),
                "EAGLE without other draft weights uses the built-in draft head",
            ),
        );
    }
    let (steps, topk, tokens) = default_spec_counts(config.version.as_ref());
    let counts = [
        (Factor::SpecNumSteps, steps),
        (Factor::SpecTopk, topk),
        (Factor::SpecDraftTokens, tokens),
    ];
    if counts.iter().all(|(factor, _)| config.get(*factor).is_none())
        && method != "ngram"
        && method != "dflash"
    {
        for (factor, n) in counts {
            all.insert(
                factor.into(),
                rule(Value::Int(n), "all three counts left out: the engine's choice"),
            );
        }
    } else {
        all.entry(Factor::SpecTopk.into())
            .or_insert(rule(Value::Int(1), "a chain unless asked otherwise"));
    }
    let int = |all: &BTreeMap<Key, Effective>, factor: Factor| {
        all.get(&Key::Known(factor)).and_then(|e| e.value.as_i64())
    };
    if int(all, Factor::SpecTopk) == Some(1)
        && let Some(steps) = int(all, Factor::SpecNumSteps)
    {
        all.insert(
            Factor::SpecDraftTokens.into(),
            rule(Value::Int(steps.saturating_add(1)), "steps + 1 when the draft is a chain"),
        );
    }
    if config.get(Factor::SchedMaxRunning).is_none() {
        all.insert(
            Factor::SchedMaxRunning.into(),
            rule(Value::Int(SGLANG_SPEC_MAX_RUNNING), "speculation without a limit"),
        );
    }
}

/// Outrider drafts wherever the checkpoint has a draft head, in chains, and to a depth of its own choice unless one is
/// given.
fn outrider_rules(config: &Config, all: &mut BTreeMap<Key, Effective>) {
    let rule = |value: Value, why: &'static str| Effective { value, why: Why::Rule(why) };
    let off = config.get(Factor::SpecMethod).and_then(Value::as_str) == Some("none");
    let asked = config.get(Factor::SpecNumSteps).and_then(Value::as_i64);
    let steps = if off { Some(0) } else { asked };
    all.insert(Factor::SpecTopk.into(), rule(Value::Int(1), "drafts are chains"));
    let Some(steps) = steps else {
        if config.get(Factor::SpecMethod).is_none() {
            all.remove(&Key::Known(Factor::SpecMethod)); // the checkpoint decides
        }
        return;
    };
    let method = if steps == 0 { "none" } else { "mtp" };
    all.insert(Factor::SpecMethod.into(), rule(Value::from(method), "the depth says it"));
    if off {
        all.insert(Factor::SpecNumSteps.into(), rule(Value::Int(0), "no speculation"));
    }
    let tokens = rule(Value::Int(steps.saturating_add(1)), "steps + 1 when the draft is a chain");
    all.insert(Factor::SpecDraftTokens.into(), tokens);
}

fn vllm_rules(config: &Config, all: &mut BTreeMap<Key, Effective>) {
    let rule = |value: Value, why: &'static str| Effective { value, why: Why::Rule(why) };
    all.insert(Factor::SpecTopk.into(), rule(Value::Int(1), "no trees"));
    match config.number(Factor::SpecNumSteps) {
        Some(steps) => {
            all.insert(
                Factor::SpecDraftTokens.into(),
                rule(Value::Int((steps as i64).saturating_add(1)), "drafts + 1"),
            );
            if config.get(Factor::SpecMethod).is_none() {
                all.remove(&Key::Known(Factor::SpecMethod)); // something drafts, the configuration does not say what
            }
        }
        None => {
            all.insert(Factor::SpecNumSteps.into(), rule(Value::Int(0), "no speculation"));
            all.insert(Factor::SpecDraftTokens.into(), rule(Value::Int(1), "no speculation"));
        }
    }
    if config.get(Factor::MemStaticFraction).is_none() {
        all.insert(
            Factor::MemStaticFraction.into(),
            rule(Value::Float(0.9), "0.9, and 0.92 in the newest releases"),
        );
    }
    // A default that the engine states only through a switch of either sign.
    all.entry(Factor::ExecCudaGraph.into())
        .or_insert(rule(Value::Bool(true), "on unless eager is enforced"));
}

/// The method of a server that drafts, as its log shows, while nothing says how.
pub const DRAFTING: &str = "drafting";

fn llamacpp_rules(config: &Config, all: &mut BTreeMap<Key, Effective>) {
    let rule = |value: Value, why: &'static str| Effective { value, why: Why::Rule(why) };
    all.insert(Factor::SpecTopk.into(), rule(Value::Int(1), "no trees"));
    let method = config.get(Factor::SpecMethod).and_then(Value::as_str).unwrap_or("none");
    if method == "none" && config.get(Factor::SpecDraftModel).is_none() {
        all.insert(Factor::SpecNumSteps.into(), rule(Value::Int(0), "no speculation"));
        all.insert(Factor::SpecDraftTokens.into(), rule(Value::Int(1), "no speculation"));
    } else if let Some(steps) =
        all.get(&Key::Known(Factor::SpecNumSteps)).and_then(|e| e.value.as_i64())
    {
        all.insert(
            Factor::SpecDraftTokens.into(),
            rule(Value::Int(steps.saturating_add(1)), "drafts + 1"),
        );
    }
}

/// The differences between two configurations of any two engines, by effective value.
///
/// A factor that one side leaves open and the other only mentions in a dump of resolved arguments is no difference:
/// nobody asked for it. One that a person wrote on one side is.
pub fn differences(a: &Config, b: &Config) -> Vec<Difference> {
    let (left, right) = (of(a), of(b));
    let keys: BTreeSet<&Key> = left.keys().chain(right.keys()).collect();
    let mut out = Vec::new();
    if a.engine != b.engine {
        let name = |engine: Engine| Some(Value::Text(engine.name().to_owned()));
        out.push(Difference {
            key: Factor::EngineName.into(),
            a: name(a.engine),
            b: name(b.engine),
        });
    }
    if let (Some(x), Some(y)) = (&a.version, &b.version)
        && x != y
    {
        let text = |version: &Version| Some(Value::Text(version.to_string()));
        out.push(Difference { key: Factor::EngineVersion.into(), a: text(x), b: text(y) });
    }
    for key in keys {
        if *key == Key::Known(Factor::EngineVersion)
            || (a.engine != b.engine && matches!(key, Key::Raw(_)))
        {
            continue;
        }
        let (x, y) = (left.get(key), right.get(key));
        let differs = match (x, y) {
            (Some(x), Some(y)) => {
                let asked = x.why != Why::Default || y.why != Why::Resolved;
                let asked = asked && (x.why != Why::Resolved || y.why != Why::Default);
                asked
                    && !x.value.same(&y.value)
                    && !resolves(key, (x, a), (y, b))
                    && !resolves(key, (y, b), (x, a))
                    && !drafts_somehow(&x.value, &y.value)
            }
            (Some(x), None) => counts_alone(x, a, b, key),
            (None, Some(y)) => counts_alone(y, b, a, key),
            (None, None) => false,
        };
        if differs {
            out.push(Difference {
                key: key.clone(),
                a: x.map(|e| e.value.clone()),
                b: y.map(|e| e.value.clone()),
            });
        }
    }
    out
}

/// `auto` on one side and a value that the other side's dump resolved is no difference that anybody made. Two dumps of one
/// release resolve alike, and every release leaves the KV cache's `auto` as it is: there both were asked for.
fn resolves(
    key: &Key,
    (auto, open): (&Effective, &Config),
    (value, side): (&Effective, &Config),
) -> bool {
    let stays = open.version == side.version || *key == Key::Known(Factor::MemKvDtype);
    let alike = open.whole && side.whole && stays;
    auto.value.as_str() == Some("auto") && (value.why != Why::Asked || (side.whole && !alike))
}

/// Whether one side drafts in a way that is not known, and the other drafts.
fn drafts_somehow(x: &Value, y: &Value) -> bool {
    let is = |word: &str| x.as_str() == Some(word) || y.as_str() == Some(word);
    is(DRAFTING) && !is("none")
}

/// Whether a value that only one side has is a difference: it was asked for by a person, or the other side's dump lists
/// the factor and leaves it open. A variable counts only where the other side's source would have shown it.
fn counts_alone(value: &Effective, side: &Config, other: &Config, key: &Key) -> bool {
    let from_environment = side.settings.get(key).is_some_and(Setting::is_variable);
    if value.why != Why::Asked || (from_environment && !other.environment_known) {
        return false;
    }
    match key {
        Key::Known(factor) => !side.whole || (other.whole && other.open.contains(factor)),
        Key::Raw(_) => !side.whole || (other.whole && side.version == other.version),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(engine: Engine, flags: &[(&str, Option<&str>)]) -> Config {
        let mut config = Config::new(engine);
        for (name, word) in flags {
            config.set_flag(name, *word);
        }
        config
    }

    #[test]
    fn a_chain_verifies_one_token_more_than_it_drafts() {
        let c = config(
            Engine::Sglang,
            &[
                ("--speculative-algorithm", Some("NEXTN")),
                ("--speculative-num-steps", Some("1")),
                ("--speculative-eagle-topk", Some("1")),
            ],
        );
        assert_eq!(get(&c, Factor::SpecDraftTokens), Some(Value::Int(2)));
        assert_eq!(get(&c, Factor::SchedMaxRunning), Some(Value::Int(48)));
        assert_eq!(get(&c, Factor::SpecMethod), Some(Value::Text("mtp".into())));
    }

    #[test]
    fn a_log_with_drafts_makes_llama_cpp_depths_count() {
        let side = |depth: &'static str, method: Option<&'static str>| {
            let mut side = config(Engine::LlamaCpp, &[("--draft-max", Some(depth))]);
            if let Some(method) = method {
                side.state(Factor::SpecMethod, Value::from(method), "log");
            }
            side
        };
        let factors = |a: &Config, b: &Config| -> Vec<Option<Factor>> {
            differences(a, b).iter().map(Difference::factor).collect()
        };
        assert_eq!(factors(&side("6", None), &side("2", None)), vec![], "nothing drafts");
        let steps = [Some(Factor::SpecNumSteps), Some(Factor::SpecDraftTokens)];
        let known = config(
            Engine::LlamaCpp,
            &[("--draft-max", Some("6")), ("--spec-type", Some("draft-mtp"))],
        );
        for before in [&side("6", Some(DRAFTING)), &side("6", Some("mtp")), &known] {
            assert_eq!(factors(before, &side("2", Some(DRAFTING))), steps);
        }
        assert!(factors(&known, &side("6", None)).contains(&Some(Factor::SpecMethod)));
    }

    #[test]
    fn left_out_counts_follow_the_version() {
        let mut c = config(Engine::Sglang, &[("--speculative-algorithm", Some("EAGLE"))]);
        assert_eq!(get(&c, Factor::SpecNumSteps), Some(Value::Int(3)));
        c.version = Version::parse("0.5.5.post3");
        assert_eq!(get(&c, Factor::SpecNumSteps), Some(Value::Int(5)));
        assert_eq!(get(&c, Factor::SpecTopk), Some(Value::Int(4)));
    }

    #[test]
    fn defaults_and_auto_are_no_differences() {
        let mut a =
            config(Engine::Sglang, &[("--page-size", Some("1")), ("--dtype", Some("bfloat16"))]);
        let b = config(Engine::Sglang, &[]);
        assert_eq!(differences(&a, &b).len(), 1, "a number type that a person asked for is one");
        a.whole = true;
        assert_eq!(differences(&a, &b), vec![], "one that the engine resolved is not");
        let differ = |flag: &str, value: &'static str, before: &str| {
            let dump = |version: &str, value: &'static str| {
                let mut dump = config(Engine::Sglang, &[(flag, Some(value))]);
                (dump.whole, dump.version) = (true, Version::parse(version));
                dump
            };
            let found = differences(&dump(before, value), &dump("0.5.20", "auto"));
            found.iter().any(|d| d.factor() != Some(Factor::EngineVersion))
        };
        assert!(differ("--dtype", "float16", "0.5.20"), "one release resolves `auto` alike");
        assert!(!differ("--dtype", "float16", "0.5.10"), "another may say what it resolved");
        assert!(differ("--kv-cache-dtype", "fp8_e5m2", "0.5.10"));
        let c = config(Engine::Sglang, &[("--disable-radix-cache", None)]);
        let found = differences(&b, &c);
        assert_eq!(found.len(), 1);
        assert_eq!(
            (found[0].a.clone(), found[0].b.clone()),
            (Some(Value::Bool(true)), Some(Value::Bool(false)))
        );
    }

    #[test]
    fn what_only_a_dump_mentions_is_no_difference() {
        let asked = config(Engine::Sglang, &[("--context-length", Some("131072"))]);
        let mut dump = config(
            Engine::Sglang,
            &[("--context-length", Some("131072")), ("--chunked-prefill-size", Some("8192"))],
        );
        dump.whole = true;
        assert_eq!(differences(&asked, &dump), vec![]);
    }
}
