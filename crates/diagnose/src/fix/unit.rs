//! The drop-in that puts a fix in force: it replaces `ExecStart=` and leaves the unit as it is.

use dialects::unit::Unit;

use super::edit::edited;
use super::words::Quoting;
use crate::finding::Fix;

/// The name of the drop-in; it sorts after what people write.
pub const DROP_IN: &str = "zz-outrider-fix.conf";

/// The drop-in's text for a unit with all its drop-ins applied.
///
/// # Errors
/// When no command of the unit can take the fix; the text says what would be right.
pub fn drop_in(unit: &Unit, fix: &Fix, why: &str) -> Result<String, String> {
    if unit.exec_start.is_empty() {
        return Err("the unit has no ExecStart".to_owned());
    }
    let (mut lines, mut refusal, mut n_changed) = (Vec::new(), None, 0);
    for exec in &unit.exec_start {
        let special = |c: char| matches!(c, '@' | '-' | ':' | '+' | '!');
        let command = exec.line.trim_start_matches(special);
        let prefix = &exec.line[..exec.line.len() - command.len()];
        match edited(&Quoting::Systemd.split(command), fix, Quoting::Systemd) {
            Ok(words) => {
                let words: Vec<&str> = words.iter().map(|word| word.raw.as_str()).collect();
                lines.push(format!("{prefix}{}", words.join(" ")));
                n_changed += 1;
            }
            Err(error) => {
                lines.push(exec.line.clone());
                refusal = Some(error);
            }
        }
    }
    match (n_changed, refusal) {
        (1, _) => {}
        (0, Some(error)) => return Err(error),
        _ => return Err(format!("{n_changed} commands of the unit start a server")),
    }
    let why: String = why.chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
    let mut out = format!(
        "# Written by `outrider fix`: {why}\n# `outrider fix --revert` removes it.\n[Service]\nExecStart=\n"
    );
    for line in lines {
        out += &format!("ExecStart={line}\n");
    }
    Ok(out)
}

#[cfg(test)]
mod tests {
    use dialects::{Factor, Value};

    use super::*;

    #[test]
    fn a_drop_in_changes_the_flag_and_nothing_else() {
        let mut unit = Unit::default();
        unit.apply("[Service]\nEnvironment=A=1\nExecStart=-/v/python -m sglang.launch_server \\\n  --model-path /m --speculative-algorithm NEXTN \\\n  --speculative-num-steps 1 --api-key \"a b\" --port 30000\n");
        let fix = Fix {
            set: vec![("--speculative-num-steps".to_owned(), "3".to_owned())],
            ..Fix::default()
        };
        let text = drop_in(&unit, &fix, "spec.num_steps 1 -> 3\n[Evil]").unwrap();
        assert!(text.starts_with("# Written by `outrider fix`: spec.num_steps 1 -> 3 [Evil]\n"));
        let mut changed = unit.clone();
        changed.apply(&text);
        assert_eq!(changed.exec_start.len(), 1);
        assert!(changed.exec_start[0].line.starts_with("-/v/python -m"));
        assert!(changed.exec_start[0].line.contains("--api-key \"a b\" --port 30000"));
        let (before, after) = (&unit.commands(&[], "")[0].1, &changed.commands(&[], "")[0].1);
        assert_eq!(after.config.get(Factor::SpecNumSteps), Some(&Value::Int(3)));
        let differences = before.config.differences(&after.config);
        assert!(
            differences.iter().all(|d| d.key.to_string().starts_with("spec.")),
            "{differences:?}"
        );
    }

    #[test]
    fn a_unit_that_starts_something_else_is_refused() {
        let mut unit = Unit::default();
        unit.apply("[Service]\nExecStart=/srv/start.sh\n");
        assert!(drop_in(&unit, &Fix::default(), "x").unwrap_err().contains("/srv/start.sh"));
    }
}
