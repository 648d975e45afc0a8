//! `docs/configuration.md`, derived from the flags; the test keeps it current.

use std::fmt::Write;
use std::path::PathBuf;

use clap::{Arg, Command as ClapCommand, CommandFactory};

use crate::flags::Cli;
use crate::foreign;

const HEAD: &str = "\
# Configuration

This file is derived from `crates/cli/src/flags.rs` and `crates/cli/src/foreign.rs`.
`UPDATE_DOCS=1 cargo test -p cli documentation` writes it anew.
";

fn document() -> String {
    let mut out = HEAD.to_owned();
    let mut root = Cli::command();
    root.build();
    for command in root.get_subcommands().filter(|c| c.get_name() != "help") {
        section(&mut out, command, command.get_name());
    }
    out += "\n## SGLang flags that change nothing here\n\n\
            `outrider serve` accepts them and lists the given ones at start.\n\
            Any other flag is refused.\n\n";
    out += &foreign::documentation();
    out
}

fn section(out: &mut String, command: &ClapCommand, name: &str) {
    let about = command.get_about().map(ToString::to_string).unwrap_or_default();
    writeln!(out, "\n## outrider {name}\n\n{about}.\n").expect("a string grows");
    *out += "| argument | default | what it does |\n|---|---|---|\n";
    let shown =
        |arg: &&Arg| !arg.is_hide_set() && !["help", "version"].contains(&arg.get_id().as_str());
    for arg in command.get_arguments().filter(shown) {
        let names = names(arg);
        let defaults: Vec<String> =
            arg.get_default_values().iter().map(|v| v.to_string_lossy().into_owned()).collect();
        let takes_value = arg.get_num_args().is_some_and(|n| n.takes_values());
        let default = if takes_value { defaults.join(",") } else { String::new() };
        let help = arg.get_help().map(ToString::to_string).unwrap_or_default();
        let values: Vec<String> = arg
            .get_possible_values()
            .iter()
            .filter(|v| takes_value && !v.is_hide_set())
            .map(|v| format!("`{}`", v.get_name()))
            .collect();
        let values =
            if values.is_empty() { String::new() } else { format!(" ({})", values.join(", ")) };
        writeln!(out, "| {names} | {default} | {}{values} |", help.replace('\n', " "))
            .expect("a string grows");
    }
    for inner in command.get_subcommands().filter(|c| c.get_name() != "help") {
        section(out, inner, &format!("{name} {}", inner.get_name()));
    }
}

fn names(arg: &Arg) -> String {
    let value =
        arg.get_value_names().map_or(String::new(), |names| format!(" {}", names.join(" ")));
    let Some(long) = arg.get_long() else { return format!("`{}`", value.trim()) };
    let value =
        if arg.get_num_args().is_some_and(|n| n.takes_values()) { value } else { String::new() };
    let short = arg.get_short().map_or(String::new(), |c| format!("`-{c}`, "));
    let aliases: String = arg
        .get_visible_aliases()
        .unwrap_or_default()
        .iter()
        .map(|a| format!(", `--{a}`"))
        .collect();
    format!("{short}`--{long}{value}`{aliases}").replace('|', "\\|")
}

#[test]
fn the_configuration_document_is_current() {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../docs/configuration.md");
    let want = document();
    if std::env::var_os("UPDATE_DOCS").is_some() {
        std::fs::write(&path, &want).expect("docs/configuration.md can be written");
    }
    let have = std::fs::read_to_string(&path).expect("docs/configuration.md");
    assert!(have == want, "run UPDATE_DOCS=1 cargo test -p cli documentation");
}
