//! Shell histories: bash with and without times, zsh's extended form, fish.

/// One line that somebody typed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// When, in seconds since 1970, where the shell kept it.
    pub time: Option<i64>,
    /// The line of the file where the command starts, from 1.
    pub line_no: u32,
    /// The command, continued lines joined by a newline.
    pub text: String,
}

/// Reads a history of any of the three shells.
pub fn parse(text: &str) -> Vec<Entry> {
    if text.lines().any(|line| line.starts_with("- cmd: ")) {
        fish(text)
    } else {
        bash_or_zsh(text)
    }
}

fn bash_or_zsh(text: &str) -> Vec<Entry> {
    let mut out: Vec<Entry> = Vec::new();
    let mut time = None;
    let mut continued = false;
    for (i, line) in text.lines().enumerate() {
        if continued && let Some(last) = out.last_mut() {
            last.text.push('\n');
            last.text.push_str(line);
            continued = line.ends_with('\\');
            continue;
        }
        if let Some(stamp) = line.strip_prefix('#').and_then(|rest| rest.trim().parse::<i64>().ok())
        {
            time = Some(stamp);
            continue;
        }
        let (stamp, command) = match zsh_line(line) {
            Some((stamp, command)) => (Some(stamp), command),
            None => (time, line),
        };
        continued = command.ends_with('\\');
        if !command.trim().is_empty() {
            out.push(Entry { time: stamp, line_no: i as u32 + 1, text: command.to_owned() });
        }
        // A bash time belongs to the next command only; multi-line commands without one keep it.
        time = None;
    }
    out
}

/// `: 1794474900:0;command`.
fn zsh_line(line: &str) -> Option<(i64, &str)> {
    let (stamp, rest) = line.strip_prefix(": ")?.split_once(':')?;
    let (_, command) = rest.split_once(';')?;
    Some((stamp.trim().parse().ok()?, command))
}

fn fish(text: &str) -> Vec<Entry> {
    let mut out: Vec<Entry> = Vec::new();
    for (i, line) in text.lines().enumerate() {
        if let Some(command) = line.strip_prefix("- cmd: ") {
            let text = command.replace("\\n", "\n").replace("\\\\", "\\");
            out.push(Entry { time: None, line_no: i as u32 + 1, text });
        } else if let Some(stamp) = line.trim().strip_prefix("when: ")
            && let Some(last) = out.last_mut()
        {
            last.time = stamp.trim().parse().ok();
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_three_shells() {
        let bash = parse("#1791529202\nvllm serve m \\\n --tp 2\nls\n");
        assert_eq!(bash.len(), 2);
        assert_eq!((bash[0].time, bash[0].line_no), (Some(1_791_529_202), 2));
        assert_eq!(bash[0].text, "vllm serve m \\\n --tp 2");
        assert_eq!(bash[1].time, None);
        let zsh = parse(": 1794474900:0;cd /srv && ./run.sh\n: 1795179600:3;vim run.sh\n");
        assert_eq!((zsh[1].time, zsh[1].text.as_str()), (Some(1_795_179_600), "vim run.sh"));
        let fish =
            parse("- cmd: vllm serve m\n  when: 1700000000\n  paths:\n    - x\n- cmd: a\\nb\n");
        assert_eq!((fish[0].time, fish[1].text.as_str()), (Some(1_700_000_000), "a\nb"));
    }
}
