//! `docs/diagnosis.md`: its tables and its worked example are produced here.
//!
//! `UPDATE_DOCS=1 cargo test -p diagnose document` writes them anew.

use std::fs;
use std::path::{Path, PathBuf};

use diagnose::collect::ssh;
use diagnose::commands::{self, DiagnoseArgs};
use diagnose::configs::Origin;
use diagnose::quantity::Quantity;
use diagnose::rules::RULES;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// Replaces what stands between a mark and the next end mark.
fn replace(text: &str, mark: &str, body: &str) -> String {
    let start = text.find(mark).unwrap_or_else(|| panic!("the document has no {mark}"));
    let from = start + text[start..].find("-->\n").expect("the mark ends") + "-->\n".len();
    let to = from + text[from..].find("<!-- end -->").expect("an end mark");
    format!("{}{body}{}", &text[..from], &text[to..])
}

fn example() -> String {
    let mut out = Vec::new();
    let args = DiagnoseArgs {
        from_dir: Some(root().join("cases/diagnose/01-few-mtp-steps")),
        ..DiagnoseArgs::default()
    };
    commands::diagnose(&args, &mut out).expect("the case is diagnosed");
    let text = String::from_utf8(out).expect("text");
    format!("```text\n{}\n```\n", text.trim_end())
}

#[test]
fn document_is_current() {
    let path = root().join("docs/diagnosis.md");
    let written = fs::read_to_string(&path).expect("the document is in the repository");
    let quantities: String = Quantity::ALL
        .iter()
        .map(|q| format!("| `{}` | {} | {} |\n", q.name(), q.unit(), q.definition()))
        .collect();
    let rules: String =
        RULES.iter().map(|rule| format!("| {} | {} |\n", rule.name, rule.about)).collect();
    let origins: String = Origin::ALL
        .iter()
        .map(|origin| format!("| {} | {:.0} % |\n", origin.name(), origin.confidence() * 100.0))
        .collect();
    let remote: String =
        ssh::commands().map(|command| format!("{command}\n")).collect::<Vec<_>>().concat();
    let mut current = replace(&written, "<!-- example:", &example());
    current = replace(&current, "<!-- table: origins -->", &origins);
    current = replace(&current, "<!-- table: quantities -->", &quantities);
    current = replace(&current, "<!-- table: rules -->", &rules);
    current = replace(&current, "<!-- table: ssh -->", &format!("```text\n{remote}```\n"));
    if std::env::var_os("UPDATE_DOCS").is_some() {
        fs::write(&path, &current).expect("the document is written");
    } else {
        assert!(
            written == current,
            "docs/diagnosis.md is not current: UPDATE_DOCS=1 cargo test -p diagnose document"
        );
    }
}
