//! Which crate may use which: arrows point down only, and async stays at the edge.

use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;

use anyhow::Context;
use serde_json::Value;

use super::Problem;

/// What each crate of the workspace may depend on. `cli` may use everything, and so may `testkit`,
/// which only tests use.
const ALLOWED: &[(&str, &[&str])] = &[
    ("kernels", &[]),
    ("checkpoint", &[]),
    ("cache", &[]),
    ("text", &[]),
    ("telemetry", &[]),
    ("dialects", &[]),
    ("model", &["kernels", "checkpoint", "cache"]),
    ("plan", &["checkpoint", "dialects"]),
    ("engine", &["model", "cache", "plan", "telemetry"]),
    ("api", &["engine", "text", "telemetry", "plan"]),
    ("bench", &["dialects", "telemetry"]),
    ("diagnose", &["dialects", "bench", "plan", "telemetry"]),
    ("xtask", &["kernels"]),
];

/// Crates that may use an async runtime or an async server directly.
const ASYNC_ALLOWED: [&str; 5] = ["api", "bench", "diagnose", "cli", "testkit"];

/// Name prefixes of crates that bring an async runtime.
const ASYNC: [&str; 7] = ["tokio", "axum", "futures", "hyper", "tower", "async-", "smol"];

/// One declared dependency of a workspace crate.
#[derive(Debug)]
pub(super) struct Dependency {
    from: String,
    to: String,
    /// Whether `to` is a crate of this workspace.
    ours: bool,
    dev: bool,
}

/// Every dependency that a manifest of the workspace declares.
pub(super) fn workspace_dependencies(root: &Path) -> anyhow::Result<Vec<Dependency>> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let output = Command::new(cargo)
        .args(["metadata", "--no-deps", "--offline", "--format-version", "1"])
        .current_dir(root)
        .output()
        .context("cannot run cargo metadata")?;
    anyhow::ensure!(
        output.status.success(),
        "cargo metadata failed: {}",
        String::from_utf8_lossy(&output.stderr)
    );
    let metadata: Value = serde_json::from_slice(&output.stdout)?;
    let mut found = Vec::new();
    for package in metadata["packages"].as_array().context("no packages in the metadata")? {
        let from = package["name"].as_str().context("a package without name")?;
        for dependency in package["dependencies"].as_array().into_iter().flatten() {
            found.push(Dependency {
                from: from.to_owned(),
                to: dependency["name"].as_str().context("a dependency without name")?.to_owned(),
                ours: dependency["path"].is_string(),
                dev: dependency["kind"] == "dev",
            });
        }
    }
    Ok(found)
}

/// Dependencies that the layout forbids.
pub(super) fn check(dependencies: &[Dependency]) -> Vec<Problem> {
    let mut problems = Vec::new();
    for Dependency { from, to, ours, dev } in dependencies {
        let reason = if *ours && !may_use(from, to, *dev) {
            format!("`{from}` may not depend on `{to}`: arrows point down only")
        } else if !ours && !dev && is_async(to) && !ASYNC_ALLOWED.contains(&from.as_str()) {
            format!("`{from}` may not depend on `{to}`: no async runtime below api, bench and cli")
        } else {
            continue;
        };
        problems.push(Problem::new(&format!("crates/{from}/Cargo.toml"), 0, reason));
    }
    problems
}

/// Whether the layout has an arrow; a test may also use `testkit` and whatever lies below its crate.
fn may_use(from: &str, to: &str, dev: bool) -> bool {
    match (from, to) {
        (_, "cli" | "xtask") => false,
        ("cli", _) => to != "testkit" || dev,
        ("testkit", _) => true,
        (_, "testkit") => dev,
        _ if dev => below(from).contains(to),
        _ => direct(from).contains(&to),
    }
}

fn direct(from: &str) -> &'static [&'static str] {
    ALLOWED.iter().find(|(name, _)| *name == from).map_or(&[], |(_, to)| to)
}

/// Everything that can be reached from `from` along allowed arrows.
fn below(from: &str) -> BTreeSet<&'static str> {
    let mut reached = BTreeSet::new();
    let mut open = direct(from).to_vec();
    while let Some(name) = open.pop() {
        if reached.insert(name) {
            open.extend(direct(name));
        }
    }
    reached
}

fn is_async(name: &str) -> bool {
    ASYNC.iter().any(|prefix| name.starts_with(prefix))
}

#[cfg(test)]
mod tests {
    use super::{Dependency, check};

    fn allowed(from: &str, to: &str, ours: bool, dev: bool) -> bool {
        let dependency = Dependency { from: from.into(), to: to.into(), ours, dev };
        check(&[dependency]).is_empty()
    }

    #[test]
    fn arrows_point_down() {
        assert!(allowed("engine", "model", true, false));
        assert!(!allowed("model", "engine", true, false));
        assert!(!allowed("engine", "kernels", true, false), "not an arrow of its own");
        assert!(!allowed("kernels", "cache", true, false), "leaves know nothing of each other");
        assert!(allowed("cli", "kernels", true, false));
        assert!(!allowed("api", "cli", true, false));
        assert!(!allowed("unheard_of", "kernels", true, false), "a new crate needs a row");
    }

    #[test]
    fn tests_reach_everything_below_and_the_testkit() {
        assert!(allowed("engine", "kernels", true, true));
        assert!(!allowed("engine", "api", true, true));
        assert!(allowed("engine", "testkit", true, true));
        assert!(!allowed("engine", "testkit", true, false));
        assert!(!allowed("cli", "testkit", true, false));
    }

    #[test]
    fn async_stays_at_the_edge() {
        assert!(allowed("api", "tokio", false, false));
        assert!(!allowed("engine", "tokio", false, false));
        assert!(!allowed("telemetry", "futures-util", false, false));
        assert!(allowed("engine", "libc", false, false));
    }
}
