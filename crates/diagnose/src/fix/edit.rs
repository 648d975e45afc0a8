//! Changes flags in a command line and reads it again, to see that the change does what it should.

use dialects::command::{arguments_start, from_argv};
use dialects::flags::{self, Flag, Takes, canonical_name};
use dialects::{Config, Engine, Key, effective};
use serde_json::Value as Json;

use super::words::{Quoting, Word};
use crate::finding::Fix;

/// The command line with the fix in it.
///
/// # Errors
/// When it holds no server's command, or other words of it stand in the way of the fix.
pub fn edited(words: &[Word], fix: &Fix, quoting: Quoting) -> Result<Vec<Word>, String> {
    let values: Vec<String> = words.iter().map(|word| word.value.clone()).collect();
    let Some((engine, start)) = arguments_start(&values) else {
        return in_script(words, fix, quoting);
    };
    let end = match quoting {
        Quoting::Systemd => words.len(),
        Quoting::Shell => {
            let operator = |word: &Word| {
                word.raw
                    .trim_start_matches(|c: char| c.is_ascii_digit())
                    .starts_with([';', '&', '|', '<', '>'])
            };
            words[start..].iter().position(operator).map_or(words.len(), |n| start + n)
        }
    };
    let mut line = Line { engine, quoting, words: words[start..end].to_vec() };
    for flag in &fix.unset {
        line.unset(flag)?;
    }
    for (flag, value) in &fix.set {
        line.set(flag, value)?;
    }
    let out = [&words[..start], &line.words, &words[end..]].concat();
    check(&out[..out.len() - (words.len() - end)], engine, fix)?;
    Ok(out)
}

/// `sh -c "exec server …"`: the command is inside one word.
fn in_script(words: &[Word], fix: &Fix, quoting: Quoting) -> Result<Vec<Word>, String> {
    let holds = |word: &Word| {
        let inner = Quoting::Shell.split(&word.value);
        let values: Vec<String> = inner.into_iter().map(|word| word.value).collect();
        word.value.contains(' ') && arguments_start(&values).is_some()
    };
    let Some(at) = words.iter().position(holds) else {
        let program = words.first().map_or("nothing", |word| word.value.as_str());
        return Err(format!(
            "the command is not a server's own ({program}): change the flags where that starts the server"
        ));
    };
    let inner = edited(&Quoting::Shell.split(&words[at].value), fix, Quoting::Shell)?;
    let script = inner.iter().map(|word| word.raw.as_str()).collect::<Vec<_>>().join(" ");
    let mut out = words.to_vec();
    // Inside the quotes of a unit a variable was the unit's, or doubled for the shell; both stay as they were.
    let undoubled = script.replace("$$", "$").replace("%%", "%");
    if quoting == Quoting::Systemd && (script != undoubled || script.contains(['$', '%'])) {
        return Err(
            "the script in ExecStart uses variables: change the flags there by hand".to_owned()
        );
    }
    out[at] = quoting.quote(&script)?;
    Ok(out)
}

/// What takes a fix back: the words of the flags as the command had them before.
pub fn inverse(argv: &[String], fix: &Fix) -> Fix {
    let mut back = Fix { restart: true, ..Fix::default() };
    let Some((engine, start)) = arguments_start(argv) else { return back };
    let before = from_argv(argv, &[]).map(|command| command.config);
    let words: Vec<Word> =
        argv[start..].iter().map(|w| Word { raw: w.clone(), value: w.clone() }).collect();
    let line = Line { engine, quoting: Quoting::Shell, words };
    for (flag, _) in &fix.set {
        let setting = flags::lookup(engine, flag)
            .and_then(|(known, _)| before.as_ref()?.settings.get(&Key::Known(known.factor)));
        match setting.filter(|_| line.find(flag).is_some()) {
            Some(setting) => back.set.push((flag.clone(), setting.value.to_string())),
            None => back.unset.push(flag.clone()),
        }
    }
    for flag in &fix.unset {
        let known = flags::lookup(engine, flag).map(|(known, _)| known);
        let value = known
            .filter(|known| !matches!(known.takes, Takes::Turns(_)))
            .and_then(|known| before.as_ref()?.get(known.factor).map(ToString::to_string));
        if line.find(flag).is_some() {
            back.set.push((flag.clone(), value.unwrap_or_default()));
        }
    }
    back
}

/// The arguments of a server.
struct Line {
    engine: Engine,
    quoting: Quoting,
    words: Vec<Word>,
}

impl Line {
    /// The last place of a flag under any of its names.
    fn find(&self, flag: &str) -> Option<usize> {
        let known = flags::lookup(self.engine, flag).map(|(flag, _)| flag);
        self.words.iter().rposition(|word| {
            let name = word.value.split('=').next().unwrap_or("");
            word.value.starts_with('-') && same(known, flag, name)
        })
    }

    fn set(&mut self, flag: &str, value: &str) -> Result<(), String> {
        if self.set_in_json(flag, Some(value))? {
            return Ok(());
        }
        match self.find(flag) {
            Some(at) => {
                let kept = self.words[at].value.split('=').next().unwrap_or(flag).to_owned();
                self.unset(flag)?;
                let at = at.min(self.words.len());
                self.insert(at, &kept, value)
            }
            None => self.insert(self.words.len(), flag, value),
        }
    }

    fn insert(&mut self, at: usize, flag: &str, value: &str) -> Result<(), String> {
        let mut new = vec![self.quoting.quote(flag)?];
        if !value.is_empty() {
            new.push(self.quoting.quote(value)?);
        }
        self.words.splice(at..at, new);
        Ok(())
    }

    fn unset(&mut self, flag: &str) -> Result<(), String> {
        self.set_in_json(flag, None)?;
        while let Some(at) = self.find(flag) {
            let inline = self.words[at].value.contains('=');
            let takes = flags::lookup(self.engine, flag).map(|(known, _)| known.takes);
            let next = self.words.get(at + 1).map_or("-", |word| word.value.as_str());
            let is_value = !next.starts_with('-') || next.parse::<f64>().is_ok();
            let has_value = match takes {
                _ if inline => false,
                Some(Takes::Turns(_)) => matches!(next, "true" | "false" | "True" | "False"),
                Some(Takes::Optional) => matches!(next, "on" | "off" | "auto" | "0" | "1"),
                _ => is_value,
            };
            self.words.drain(at..=at + usize::from(has_value));
        }
        Ok(())
    }

    /// A key inside a JSON flag, `--speculative-config '{"num_speculative_tokens": 1}'`; false when there is none.
    fn set_in_json(&mut self, flag: &str, value: Option<&str>) -> Result<bool, String> {
        let Some((known, _)) = flags::lookup(self.engine, flag) else { return Ok(false) };
        for name in known.names {
            let Some((parent, key)) = name.text.split_once('.') else { continue };
            let Some(at) = self.find(parent) else { continue };
            let Some(mut object) = self.json_at(at) else { continue };
            let found = object.keys().find(|k| same_key(known, parent, k)).cloned();
            let key = found.unwrap_or_else(|| key.replace('-', "_"));
            match value {
                Some(value) => {
                    let value = serde_json::from_str(value).unwrap_or_else(|_| Json::from(value));
                    object.insert(key, value);
                }
                None => drop(object.remove(&key)),
            }
            let text = Json::Object(object).to_string();
            match self.words[at].value.split_once('=').map(|(name, _)| name.to_owned()) {
                Some(name) => self.words[at] = self.quoting.quote(&format!("{name}={text}"))?,
                None => self.words[at + 1] = self.quoting.quote(&text)?,
            }
            return Ok(true);
        }
        Ok(false)
    }

    fn json_at(&self, at: usize) -> Option<serde_json::Map<String, Json>> {
        let text = match self.words[at].value.split_once('=') {
            Some((_, text)) => text,
            None => &self.words.get(at + 1)?.value,
        };
        serde_json::from_str(text).ok()
    }
}

/// Whether a word names a flag.
fn same(known: Option<&'static Flag>, flag: &str, word: &str) -> bool {
    let word = canonical_name(word);
    match known {
        Some(known) => {
            let positive = word.strip_prefix("--no-").map(|rest| format!("--{rest}"));
            known.names.iter().any(|n| n.text == word || Some(n.text) == positive.as_deref())
        }
        None => canonical_name(flag) == word,
    }
}

fn same_key(known: &Flag, parent: &str, key: &str) -> bool {
    let dotted = canonical_name(&format!("{parent}.{key}"));
    known.names.iter().any(|name| name.text == dotted)
}

/// Reads the changed command again: every flag of the fix must have its value.
fn check(words: &[Word], engine: Engine, fix: &Fix) -> Result<(), String> {
    let argv: Vec<String> = words.iter().map(|word| word.value.clone()).collect();
    let Some(command) = from_argv(&argv, &[]) else {
        return Err("the changed command is no server's command any more".to_owned());
    };
    for (flag, value) in &fix.set {
        let mut wanted = Config::new(engine);
        wanted.set_flag(flag, Some(value).filter(|v| !v.is_empty()).map(String::as_str));
        let Some((key, setting)) = wanted.settings.iter().next() else { continue };
        let Key::Known(factor) = key else { continue };
        let holds = effective::get(&command.config, *factor);
        if holds.as_ref() != Some(&setting.value) {
            let holds = holds.map_or_else(|| "open".to_owned(), |value| value.to_string());
            return Err(format!(
                "the fix sets {flag} {value}, but {factor} would be {holds}: another flag of the command contradicts it"
            ));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fix(set: &[(&str, &str)], unset: &[&str]) -> Fix {
        let owned = |s: &&str| (*s).to_owned();
        Fix {
            set: set.iter().map(|(f, v)| (owned(f), owned(v))).collect(),
            unset: unset.iter().map(owned).collect(),
            ..Fix::default()
        }
    }

    fn line(line: &str, fix: &Fix) -> Result<String, String> {
        let words = edited(&Quoting::Systemd.split(line), fix, Quoting::Systemd)?;
        Ok(words.iter().map(|word| word.raw.as_str()).collect::<Vec<_>>().join(" "))
    }

    #[test]
    fn flags_are_changed_where_they_stand() {
        let steps = fix(
            &[("--speculative-num-steps", "3"), ("--speculative-num-draft-tokens", "4")],
            &["--disable-cuda-graph"],
        );
        assert_eq!(
            line(
                "/v/python -m sglang.launch_server --model-path '/m/a b' --speculative-algorithm NEXTN --speculative_num_steps=1 --disable-cuda-graph --speculative-num-draft-tokens 2 --tp $TP",
                &steps
            )
            .unwrap(),
            "/v/python -m sglang.launch_server --model-path '/m/a b' --speculative-algorithm NEXTN --speculative_num_steps 3 --speculative-num-draft-tokens 4 --tp $TP"
        );
        let more = fix(&[("--max-num-seqs", "8")], &[]);
        assert_eq!(
            line("/bin/sh -c 'exec vllm serve m > /log 2>&1'", &more).unwrap(),
            "/bin/sh -c \"exec vllm serve m --max-num-seqs 8 > /log 2>&1\""
        );
    }

    #[test]
    fn a_key_inside_json_is_changed_in_it() {
        let depth = fix(&[("--speculative-config.num-speculative-tokens", "3")], &[]);
        let got = line(
            r#"vllm serve m --speculative-config '{"method":"mtp","num_speculative_tokens":1}'"#,
            &depth,
        )
        .unwrap();
        assert!(got.contains(r#""{\"method\":\"mtp\",\"num_speculative_tokens\":3}""#), "{got}");
    }

    #[test]
    fn what_contradicts_the_fix_is_told() {
        let steps = fix(&[("--speculative-num-steps", "3")], &[]);
        let error = line("outrider serve m --speculative-algorithm none", &steps).unwrap_err();
        assert!(error.contains("spec.num_steps would be 0"), "{error}");
        let error = line("/srv/start.sh --fast", &steps).unwrap_err();
        assert!(error.contains("/srv/start.sh"), "{error}");
    }

    #[test]
    fn the_way_back_is_the_way_it_was() {
        let argv: Vec<String> = "outrider serve m --speculative-num-steps 1 --disable-radix-cache"
            .split(' ')
            .map(str::to_owned)
            .collect();
        let there = fix(
            &[("--speculative-num-steps", "3"), ("--max-running-requests", "4")],
            &["--disable-radix-cache"],
        );
        let quoted: Vec<Word> = argv.iter().map(|w| Quoting::Shell.quote(w).unwrap()).collect();
        let fixed = edited(&quoted, &there, Quoting::Shell).unwrap();
        let back = edited(&fixed, &inverse(&argv, &there), Quoting::Shell).unwrap();
        let mut values: Vec<String> = back.into_iter().map(|word| word.value).collect();
        let mut argv = argv;
        values.sort();
        argv.sort();
        assert_eq!(values, argv);
    }
}
