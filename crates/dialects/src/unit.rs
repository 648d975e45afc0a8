//! Systemd units: the service section of a unit and its drop-ins, merged as systemd merges them.

use crate::command::{Command, find_commands};

/// What a unit and its drop-ins say together.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Unit {
    /// Commands in force, each with the index of the text it came from and its line there (from 1).
    pub exec_start: Vec<Exec>,
    /// Assignments of `Environment=`, in order.
    pub environment: Vec<(String, String)>,
    /// Paths of `EnvironmentFile=`, without the leading `-`.
    pub environment_files: Vec<String>,
    texts: usize,
}

/// One `ExecStart=` in force.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Exec {
    /// The command as written, continued lines joined.
    pub line: String,
    /// Which of the applied texts it stands in, from 0.
    pub text: usize,
    /// The line where it starts, from 1.
    pub line_no: u32,
}

impl Unit {
    /// Applies a unit file or a drop-in on top of what was applied before.
    pub fn apply(&mut self, text: &str) {
        let mut in_service = false;
        let mut pending = String::new();
        let mut start = 0;
        for (i, raw) in text.lines().enumerate() {
            let line = raw.trim();
            if pending.is_empty() {
                if line.is_empty() || line.starts_with(['#', ';']) {
                    continue;
                }
                start = i as u32 + 1;
            } else if line.starts_with(['#', ';']) {
                continue; // comments inside a continued line are dropped
            }
            match line.strip_suffix('\\') {
                Some(rest) => {
                    pending.push_str(rest);
                    pending.push(' ');
                    continue;
                }
                None => pending.push_str(line),
            }
            let whole = std::mem::take(&mut pending);
            if let Some(section) = whole.strip_prefix('[') {
                in_service = section.trim_end_matches(']') == "Service";
            } else if in_service && let Some((key, value)) = whole.split_once('=') {
                self.set(key.trim(), value.trim(), start);
            }
        }
        self.texts += 1;
    }

    fn set(&mut self, key: &str, value: &str, line_no: u32) {
        match key {
            "ExecStart" if value.is_empty() => self.exec_start.clear(),
            "ExecStart" => {
                self.exec_start.push(Exec { line: value.to_owned(), text: self.texts, line_no })
            }
            "Environment" if value.is_empty() => self.environment.clear(),
            "Environment" => {
                for word in crate::shell::words(value) {
                    if let Some((name, value)) = word.split_once('=') {
                        self.environment.push((name.to_owned(), value.to_owned()));
                    }
                }
            }
            "EnvironmentFile" if value.is_empty() => self.environment_files.clear(),
            "EnvironmentFile" => {
                self.environment_files.push(value.trim_start_matches('-').to_owned())
            }
            _ => {}
        }
    }

    /// The server commands in force. `files` are the assignments read from the environment files, which come after
    /// `Environment=`; `instance` replaces `%i`.
    pub fn commands(&self, files: &[(String, String)], instance: &str) -> Vec<(Exec, Command)> {
        let lookup = |name: &str| {
            files
                .iter()
                .rev()
                .chain(self.environment.iter().rev())
                .find(|(known, _)| known == name)
                .map(|(_, value)| value.clone())
        };
        let mut out = Vec::new();
        for exec in &self.exec_start {
            let line = exec.line.trim_start_matches(['@', '-', ':', '+', '!']);
            let line = line.replace("%i", instance).replace("%I", instance).replace("%%", "%");
            for mut command in find_commands(&line, &lookup) {
                command.config.environment_known = true;
                for (name, value) in self.environment.iter().chain(files) {
                    command.config.set_variable(name, value);
                }
                out.push((exec.clone(), command));
            }
        }
        out
    }
}

/// Reads an environment file: `NAME=value` lines, comments, quotes, an optional `export`.
pub fn environment_file(text: &str) -> Vec<(String, String)> {
    let mut out = Vec::new();
    for line in text.lines() {
        let line = line.trim();
        let line = line.strip_prefix("export ").unwrap_or(line);
        if line.starts_with(['#', ';']) {
            continue;
        }
        if let Some((name, value)) = line.split_once('=')
            && !name.is_empty()
            && name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_')
        {
            let value = value.trim();
            let quoted = value.len() >= 2
                && (value.starts_with('"') && value.ends_with('"')
                    || value.starts_with('\'') && value.ends_with('\''));
            let value = if quoted { &value[1..value.len() - 1] } else { value };
            out.push((name.to_owned(), value.to_owned()));
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::factor::Factor;
    use crate::value::Value;

    const MAIN: &str = "[Unit]\nDescription=x\n[Service]\nEnvironment=\"A=1 2\" CUDA_VISIBLE_DEVICES=0\nEnvironmentFile=-/etc/default/llm\nExecStart=/srv/bin/python -m sglang.launch_server \\\n    # a comment inside\n    --model-path /m --tp $TP\n[Install]\nExecStart=/bin/false\n";

    #[test]
    fn continued_lines_and_variables() {
        let mut unit = Unit::default();
        unit.apply(MAIN);
        let commands = unit.commands(&environment_file("# c\nexport TP='2'\n"), "");
        assert_eq!(commands.len(), 1);
        assert_eq!(commands[0].0.line_no, 6);
        let config = &commands[0].1.config;
        assert_eq!(config.get(Factor::ParTp), Some(&Value::Int(2)));
        assert_eq!(config.get(Factor::GpuVisible), Some(&"0".into()));
        assert_eq!(unit.environment_files, ["/etc/default/llm"]);
    }

    #[test]
    fn an_empty_assignment_resets() {
        let mut unit = Unit::default();
        unit.apply(MAIN);
        unit.apply("[Service]\nExecStart=\nExecStart=vllm serve m\n");
        assert_eq!(unit.exec_start.len(), 1);
        assert_eq!((unit.exec_start[0].text, unit.exec_start[0].line_no), (1, 3));
    }
}
