//! Another host through a stand-in for `ssh`, which records what it is asked to run and answers from a folder.

use std::os::unix::fs::PermissionsExt;

use crate::server::outrider;

/// Answers the search for units; everything else finds nothing.
const SSH: &str = r#"#!/bin/sh
for word in "$@"; do printf '%s\n' "$word" >>"$LOG"; done
echo == >>"$LOG"
for last in "$@"; do :; done
case "$last" in
*/etc/systemd/system*) cat "$ANSWER" ;;
*) exit 1 ;;
esac
"#;

#[test]
fn only_the_listed_commands_run_and_secrets_stay_there() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    std::fs::write(path("ssh"), SSH).unwrap();
    std::fs::set_permissions(path("ssh"), PermissionsExt::from_mode(0o755)).unwrap();
    let unit = "/etc/systemd/system/llm.service\0[Service]\n/etc/systemd/system/llm.service\0ExecStart=/v/bin/vllm serve /m --max-num-seqs 3 --api-key sk-verysecretindeed42\n";
    std::fs::write(path("answer"), unit).unwrap();
    let run = |arguments: &[&str]| {
        let mut command = outrider(arguments);
        let search = format!("{}:{}", folder.path().display(), std::env::var("PATH").unwrap());
        command.env("PATH", search).env("LOG", path("log")).env("ANSWER", path("answer"));
        command.env("HOME", folder.path()).env_remove("XDG_STATE_HOME");
        let output = command.output().unwrap();
        (output.status.code(), String::from_utf8_lossy(&output.stdout).into_owned())
    };

    let (code, listed) = run(&["configs", "--ssh", "me@gpu-a", "--print-commands"]);
    assert_eq!(code, Some(0));
    assert!(!path("log").exists(), "nothing is run when the list is printed");

    let (code, found) = run(&["configs", "--ssh", "me@gpu-a", "--json"]);
    assert_eq!(code, Some(0), "{found}");
    assert!(
        found.contains("etc/systemd/system/llm.service") && found.contains("sched.max_running"),
        "{found}"
    );
    assert!(!found.contains("verysecretindeed"), "{found}");
    let log = std::fs::read_to_string(path("log")).unwrap();
    let calls: Vec<&str> = log.split("==\n").filter(|call| !call.is_empty()).collect();
    assert_eq!(calls.len(), listed.lines().count());
    for call in calls {
        let words: Vec<&str> = call.lines().collect();
        let [options @ .., end, host, command] = &words[..] else { panic!("{call}") };
        assert_eq!((*end, *host), ("--", "me@gpu-a"));
        assert!(
            options.contains(&"-oBatchMode=yes") && options.contains(&"-oForwardAgent=no"),
            "{call}"
        );
        let quoted = command.replace('\'', "'\\''");
        assert!(
            listed.lines().any(|line| line.ends_with(&format!("'{quoted}'"))),
            "{command} is not listed"
        );
    }
    let (code, _) = run(&["configs", "--ssh=-oProxyCommand=touch x"]);
    assert_eq!(code, Some(2), "an option is no host");
}
