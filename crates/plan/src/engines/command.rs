//! An engine's own command line as the plan takes it.
//!
//! Flags that the arithmetic does not know are refused, those that it knows and does not need are listed.

use dialects::{Config, Factor, Value, Version as Release, effective, flags};

use super::EngineError;
use super::args::{Engine, Flags, StateStrategy};
use super::shape::ModelShape;

/// What a command line asks for.
#[derive(Clone, Debug)]
pub struct Asked {
    /// The flags that count.
    pub flags: Flags,
    /// Bytes per parameter of the layers, where a flag quantises them.
    pub layer_bytes_per_param: Option<f64>,
    /// What was given and does not count.
    pub notices: Vec<String>,
}

/// Drafts of one step of our own server where none are asked for and the model can draft.
const OUTRIDER_DEPTH: u64 = 8;

/// Factors that the flags of a plan come from.
const USED: &[Factor] = &[
    Factor::ParTp,
    Factor::MemStaticFraction,
    Factor::ModelMaxContext,
    Factor::SchedMaxRunning,
    Factor::MemKvTokens,
    Factor::SchedPrefillChunk,
    Factor::MemKvDtype,
    Factor::MemStateRatio,
    Factor::MemStateSlots,
    Factor::MemStateDtype,
    Factor::CacheStateStrategy,
    Factor::CachePrefix,
    Factor::SchedOverlap,
    Factor::SpecMethod,
    Factor::SpecNumSteps,
    Factor::SpecTopk,
    Factor::SpecDraftTokens,
    Factor::ModelQuant,
];

/// Factors that would change the pools or the speed in a way that is not modelled, and the value that changes nothing.
const NOT_MODELLED: &[(Factor, i64)] =
    &[(Factor::ParPp, 1), (Factor::ParDp, 1), (Factor::ParEp, 1), (Factor::ExecOffloadLayers, 0)];

/// Reads the flags of `engine` as they stand on its command line, program and model left out.
///
/// # Errors
/// Names the first flag that is not one of this engine and release, or whose value is not one.
pub fn read(engine: Engine, model: &ModelShape, words: &[String]) -> Result<Asked, EngineError> {
    for word in words.iter().filter(|word| is_flag(word)) {
        check_name(engine, word.split_once('=').map_or(word.as_str(), |(name, _)| name))?;
    }
    let mut config = Config::new(engine.dialect());
    config.version = engine.release();
    if let Some(file) = dialects::command::read_args(&mut config, words) {
        return Err(refused(
            "--config",
            &file,
            "the flags themselves: files of flags are not read",
        ));
    }
    if let Some(other) = config.get(Factor::ModelPath) {
        return Err(refused("model", &other.to_string(), "one model, named once as MODEL"));
    }
    let reader = Reader { engine, config: &config };
    let flags = reader.flags(model)?;
    Ok(Asked { flags, layer_bytes_per_param: reader.quantisation()?, notices: reader.notices()? })
}

/// Whether a word is a flag and not a value; `-1` is a value.
fn is_flag(word: &str) -> bool {
    word.strip_prefix('-')
        .is_some_and(|rest| rest.starts_with(|c: char| c == '-' || c.is_ascii_alphabetic()))
}

/// A flag that this release of the engine does not have.
fn check_name(engine: Engine, name: &str) -> Result<(), EngineError> {
    let dialect = engine.dialect();
    let unknown = |hint: String| {
        Err(EngineError::UnknownFlag { engine: engine.to_string(), flag: name.to_owned(), hint })
    };
    if name == "--config" || flags::is_plain_switch(dialect, name) {
        return Ok(());
    }
    let Some((flag, negated)) = flags::lookup(dialect, name) else {
        return unknown(nearest(dialect, name).map_or_else(
            || "leave out what changes neither pools nor speed".to_owned(),
            |near| format!("did you mean {near}?"),
        ));
    };
    let canonical = flags::canonical_name(name);
    let written = flag.names.iter().find(|n| n.text == canonical);
    let (Some(release), Some(written), false) = (engine.release(), written, negated) else {
        return Ok(());
    };
    let too_new = written.since.is_some_and(|(a, b, c)| !release.at_least(a, b, c));
    let too_old = written.until.is_some_and(|(a, b, c)| release.at_least(a, b, c));
    match flags::spelling(dialect, Some(&release), flag.factor) {
        Some(spelling) if (too_new || too_old) && spelling != canonical => {
            unknown(format!("it is spelled {spelling} there"))
        }
        _ => Ok(()),
    }
}

/// The spelling of this engine that shares most of its three-letter pieces with `name`.
fn nearest(engine: dialects::Engine, name: &str) -> Option<&'static str> {
    let pieces = |text: &str| -> Vec<String> {
        let letters: Vec<char> = text.trim_start_matches('-').chars().collect();
        letters.windows(3).map(|piece| piece.iter().collect()).collect()
    };
    let wanted = pieces(&flags::canonical_name(name));
    let alike = |candidate: &str| {
        let other = pieces(candidate);
        let common = wanted.iter().filter(|piece| other.contains(piece)).count();
        common as f64 / wanted.len().max(other.len()).max(1) as f64
    };
    let all = flags::table(engine).iter().flat_map(|part| part.iter()).flat_map(|f| f.names);
    let best = all.map(|n| (alike(n.text), n.text)).max_by(|a, b| a.0.total_cmp(&b.0))?;
    (best.0 > 0.5).then_some(best.1)
}

fn refused(flag: &str, word: &str, expected: &str) -> EngineError {
    EngineError::Flag {
        flag: flag.to_owned(),
        word: word.to_owned(),
        expected: expected.to_owned(),
    }
}

struct Reader<'a> {
    engine: Engine,
    config: &'a Config,
}

impl Reader<'_> {
    fn flags(&self, model: &ModelShape) -> Result<Flags, EngineError> {
        let effective = effective::of(self.config);
        let rule = |factor: Factor| effective.get(&factor.into()).map(|e| e.value.clone());
        let switch = |factor| rule(factor).and_then(|value| value.as_bool()).unwrap_or(true);
        let chunk = match self.engine {
            Engine::LlamaCpp => Factor::SchedPrefillMax,
            _ => Factor::SchedPrefillChunk,
        };
        // -1 and 0 mean "all at once" or "as the model has it".
        let given = |count: Option<u64>| count.filter(|n| *n > 0);
        for factor in [Factor::SpecNumSteps, Factor::SpecTopk, Factor::SpecDraftTokens] {
            self.count(factor)?;
        }
        let asked_steps = self.count(Factor::SpecNumSteps)?;
        let steps = match (self.engine, self.method().as_deref(), asked_steps) {
            (Engine::Outrider, Some("none"), _) => 0,
            (Engine::Outrider, _, Some(n)) => n,
            (Engine::Outrider, _, None) if model.n_mtp_layers > 0 => OUTRIDER_DEPTH,
            (Engine::Outrider, ..) => 0,
            _ => rule(Factor::SpecNumSteps).and_then(|v| v.as_f64()).map_or(0, |n| n as u64),
        };
        Ok(Flags {
            tp: self.width()?,
            mem_fraction: self.share(Factor::MemStaticFraction)?,
            context_length: given(self.count(Factor::ModelMaxContext)?),
            max_running: given(self.count(Factor::SchedMaxRunning)?),
            max_total_tokens: given(self.count(Factor::MemKvTokens)?),
            chunked_prefill: given(self.count(chunk)?),
            kv_dtype: self.word(Factor::MemKvDtype)?,
            state_ratio: self.number(Factor::MemStateRatio)?,
            state_slots: given(self.count(Factor::MemStateSlots)?),
            state_dtype: self.word(Factor::MemStateDtype)?,
            state_strategy: self.strategy()?,
            prefix_cache: switch(Factor::CachePrefix),
            overlap: switch(Factor::SchedOverlap),
            draft_depth: steps,
            draft_tokens: match self.engine {
                Engine::Sglang(_) if steps > 0 => {
                    rule(Factor::SpecDraftTokens).and_then(|v| v.as_f64()).map(|n| n as u64)
                }
                _ => None,
            },
        })
    }

    fn method(&self) -> Option<String> {
        self.config.get(Factor::SpecMethod).map(ToString::to_string)
    }

    /// Devices over which a layer is split.
    fn width(&self) -> Result<usize, EngineError> {
        if self.engine == Engine::LlamaCpp {
            return match self.config.get(Factor::ParTp).map(ToString::to_string).as_deref() {
                None | Some("layer" | "none") => Ok(1),
                Some(word) => {
                    Err(self.wrong(Factor::ParTp, word, "layer or none: others are not modelled"))
                }
            };
        }
        Ok(self.count(Factor::ParTp)?.map_or(1, |n| n as usize))
    }

    fn wrong(&self, factor: Factor, word: &str, expected: &str) -> EngineError {
        let setting = self.config.settings.get(&factor.into());
        refused(setting.map_or(factor.name(), |s| s.flag.as_str()), word, expected)
    }

    fn number(&self, factor: Factor) -> Result<Option<f64>, EngineError> {
        let Some(value) = self.config.get(factor) else { return Ok(None) };
        match value.as_f64().filter(|n| n.is_finite()) {
            Some(number) => Ok(Some(number)),
            None => Err(self.wrong(factor, &value.to_string(), "a number")),
        }
    }

    /// A whole number; -1, with which engines say "no limit", counts as 0.
    fn count(&self, factor: Factor) -> Result<Option<u64>, EngineError> {
        match self.number(factor)? {
            Some(n) if n.fract() != 0.0 || n < -1.0 => {
                Err(self.wrong(factor, &n.to_string(), "a whole number"))
            }
            number => Ok(number.map(|n| n.max(0.0) as u64)),
        }
    }

    fn share(&self, factor: Factor) -> Result<Option<f64>, EngineError> {
        match self.number(factor)? {
            Some(n) if self.engine != Engine::LlamaCpp && !(0.0..=1.0).contains(&n) => {
                Err(self.wrong(factor, &n.to_string(), "a share from 0 to 1"))
            }
            number => Ok(number),
        }
    }

    /// A word with a meaning of its own; `auto` leaves the choice to the engine.
    fn word<T: std::str::FromStr<Err = EngineError>>(
        &self,
        factor: Factor,
    ) -> Result<Option<T>, EngineError> {
        match self.config.get(factor).map(ToString::to_string).filter(|word| word != "auto") {
            Some(word) => word.parse().map(Some),
            None => Ok(None),
        }
    }

    fn strategy(&self) -> Result<Option<StateStrategy>, EngineError> {
        match self.engine {
            Engine::Sglang(_) => self.word(Factor::CacheStateStrategy),
            _ => Ok(None),
        }
    }

    fn quantisation(&self) -> Result<Option<f64>, EngineError> {
        let Some(Value::Text(word)) = self.config.get(Factor::ModelQuant) else { return Ok(None) };
        match word.as_str() {
            "none" | "unquant" => Ok(None),
            w if w.contains("fp4")
                || w.contains("int4")
                || w.contains("awq")
                || w.contains("gptq") =>
            {
                Ok(Some(0.52))
            }
            w if w.contains("fp8") || w.contains("int8") || w == "q8" => Ok(Some(1.0)),
            "q4" => Ok(Some(0.52)),
            w => Err(self.wrong(Factor::ModelQuant, w, "fp8, int8, awq, gptq, int4 or fp4")),
        }
    }

    /// What was given and does not count, and what would count and is not modelled.
    fn notices(&self) -> Result<Vec<String>, EngineError> {
        let mut notices = Vec::new();
        for (factor, nothing) in NOT_MODELLED {
            let Some(value) = self.config.get(*factor) else { continue };
            let number = value.as_f64();
            if self.engine == Engine::LlamaCpp && *factor == Factor::ExecOffloadLayers {
                notices.push("layers are fitted to the devices, whatever -ngl says".to_owned());
            } else if number != Some(*nothing as f64) && value.as_bool() != Some(false) {
                return Err(self.wrong(*factor, &value.to_string(), "nothing: it is not modelled"));
            }
        }
        if let Some(method) = self.method()
            && !matches!(method.as_str(), "none" | "mtp" | "eagle" | "eagle3")
        {
            notices.push(format!("planned as if {method} drafted with the model's own head"));
        }
        let modelled = |factor: &Factor| NOT_MODELLED.iter().any(|(other, _)| other == factor);
        let chunk_of_llamacpp =
            |factor: &Factor| self.engine == Engine::LlamaCpp && *factor == Factor::SchedPrefillMax;
        let unused: Vec<&str> = self
            .config
            .settings
            .iter()
            .filter(|(key, _)| match key {
                dialects::Key::Known(f) => {
                    !USED.contains(f) && !modelled(f) && !chunk_of_llamacpp(f)
                }
                dialects::Key::Raw(_) => true,
            })
            .map(|(_, setting)| setting.flag.as_str())
            .collect();
        if !unused.is_empty() {
            notices.push(format!("not part of this arithmetic: {}", unused.join(", ")));
        }
        Ok(notices)
    }
}

impl Engine {
    /// Whose flags it takes.
    #[must_use]
    pub fn dialect(self) -> dialects::Engine {
        match self {
            Engine::Sglang(_) => dialects::Engine::Sglang,
            Engine::Vllm(_) => dialects::Engine::Vllm,
            Engine::LlamaCpp => dialects::Engine::LlamaCpp,
            Engine::Outrider => dialects::Engine::Outrider,
        }
    }

    fn release(self) -> Option<Release> {
        match self {
            Engine::Sglang(version) | Engine::Vllm(version) => Release::parse(&version.to_string()),
            Engine::LlamaCpp | Engine::Outrider => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::known::known;
    use super::{Asked, EngineError, read};

    fn asked(engine: &str, line: &str) -> Result<Asked, EngineError> {
        let words: Vec<String> = line.split_whitespace().map(str::to_owned).collect();
        read(engine.parse().unwrap(), &known("Qwen3.6-27B").unwrap(), &words)
    }

    fn error(engine: &str, line: &str) -> String {
        asked(engine, line).unwrap_err().to_string()
    }

    #[test]
    fn an_old_unit_file_s_flags() {
        let line = "--tp 2 --mem-fraction-static 0.88 --context-length 131072 --max-running-requests 16 \
            --mamba-full-memory-ratio 0.5 --mamba-scheduler-strategy extra_buffer --speculative-algorithm NEXTN \
            --speculative-num-steps 3 --speculative-eagle-topk 1 --speculative-num-draft-tokens 4 --reasoning-parser qwen3";
        let Asked { flags, notices, .. } = asked("sglang@0.5.10", line).unwrap();
        assert_eq!((flags.tp, flags.mem_fraction, flags.max_running), (2, Some(0.88), Some(16)));
        assert_eq!((flags.draft_depth, flags.verify_width(), flags.state_ratio), (3, 4, Some(0.5)));
        assert_eq!(notices, ["not part of this arithmetic: --reasoning-parser"]);
        let counts = asked("sglang@0.5.5", "--speculative-algorithm NEXTN").unwrap().flags;
        assert_eq!((counts.draft_depth, counts.verify_width()), (5, 8));
    }

    #[test]
    fn other_engines_flags() {
        let vllm = r#"--tensor-parallel-size 2 --max-num-seqs 8 --speculative-config {"method":"mtp","num_speculative_tokens":2}"#;
        let flags = asked("vllm", vllm).unwrap().flags;
        assert_eq!((flags.tp, flags.max_running, flags.draft_depth), (2, Some(8), 2));
        let llama = asked("llama.cpp", "-c 65536 -np 4 -ctk q8_0 -ub 1024 -ngl 99").unwrap();
        assert_eq!((llama.flags.context_length, llama.flags.max_running), (Some(65_536), Some(4)));
        assert_eq!(llama.flags.chunked_prefill, Some(1024));
        let ours = asked("outrider", "--threads 8").unwrap().flags;
        assert_eq!(ours.draft_depth, 8, "as deep as pays, up to this");
        assert_eq!(asked("outrider", "--speculative-algorithm none").unwrap().flags.draft_depth, 0);
    }

    #[test]
    fn what_is_wrong_is_named_with_what_would_be_right() {
        assert!(error("vllm", "--max-running-requests 3").contains("--max-running-requests"));
        assert!(error("sglang", "--max-runing-requests 3").contains("--max-running-requests?"));
        let renamed = error("sglang@0.5.10", "--mamba-radix-cache-strategy extra_buffer");
        assert!(renamed.contains("--mamba-scheduler-strategy"), "{renamed}");
        let gone = error("sglang@0.5.23", "--mamba-scheduler-strategy extra_buffer");
        assert!(gone.contains("--mamba-radix-cache-strategy"), "{gone}");
        assert!(error("sglang", "--mem-fraction-static much").contains("a number"));
        assert!(error("sglang", "--mem-fraction-static 88").contains("share from 0 to 1"));
        assert!(error("sglang", "--kv-cache-dtype odd").contains("odd"));
        assert!(error("sglang", "--dp-size 4").contains("not modelled"));
        assert!(error("sglang", "--config x.yaml").contains("x.yaml"));
        assert!(error("sglang", "stray").contains("stray"));
    }
}
