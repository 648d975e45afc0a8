//! Every case under `cases/diagnose`, judged offline and held against its `expected.json`.

use std::fs;
use std::path::{Path, PathBuf};

use diagnose::commands::{self, ConfigsArgs, DiagnoseArgs};
use diagnose::evidence::Evidence;
use diagnose::{collect, render, report};
use serde_json::Value as Json;

fn cases() -> Vec<PathBuf> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../cases/diagnose");
    let mut cases: Vec<PathBuf> = fs::read_dir(root)
        .expect("the cases are in the repository")
        .map(|entry| entry.expect("an entry").path())
        .filter(|path| path.join("expected.json").is_file())
        .collect();
    cases.sort();
    assert!(cases.len() >= 15, "some cases are missing");
    cases
}

fn expected(case: &Path) -> Json {
    let text = fs::read_to_string(case.join("expected.json")).expect("the file is there");
    serde_json::from_str(&text).expect("it is JSON")
}

fn diagnosed(case: &Path) -> Json {
    let mut out = Vec::new();
    let args =
        DiagnoseArgs { from_dir: Some(case.to_owned()), json: true, ..DiagnoseArgs::default() };
    let code = commands::diagnose(&args, &mut out).expect("a case is diagnosed");
    let report: Json = serde_json::from_slice(&out).expect("the output is JSON");
    assert_eq!(report["exit_code"], code);
    report
}

/// Complaints about one case, collected so that one run shows them all.
struct Complaints {
    case: String,
    list: Vec<String>,
}

impl Complaints {
    fn check(&mut self, holds: bool, what: impl FnOnce() -> String) {
        if !holds {
            self.list.push(format!("{}: {}", self.case, what()));
        }
    }
}

#[test]
fn every_case_is_judged_as_expected() {
    let mut all = Vec::new();
    for case in cases() {
        let name = case.file_name().expect("a name").to_string_lossy().into_owned();
        let mut complaints = Complaints { case: name, list: Vec::new() };
        check(&expected(&case), &diagnosed(&case), &mut complaints);
        all.extend(complaints.list);
    }
    assert!(all.is_empty(), "\n{}", all.join("\n"));
}

fn check(expected: &Json, report: &Json, complaints: &mut Complaints) {
    let verdict = &expected["verdict"];
    complaints.check(report["verdict"] == *verdict, || {
        format!("verdict {} is not {verdict}", report["verdict"])
    });
    let code = match verdict.as_str() {
        Some("no_regression") => 0,
        _ => 10,
    };
    complaints.check(report["exit_code"] == code, || format!("exit code {}", report["exit_code"]));
    primary(&expected["primary"], &report["primary"], complaints);
    for factor in list(&expected["must_rank_below_primary"]) {
        let rank =
            list(&report["suspects"]).iter().position(|suspect| suspect["factor"] == *factor);
        complaints.check(rank != Some(0), || format!("{factor} comes first"));
    }
    for phrase in list(&expected["must_not_claim"]) {
        let plain = |text: &str| text.to_lowercase().replace('_', " ");
        let phrase = plain(phrase.as_str().expect("text"));
        for claim in list(&report["claims"]) {
            complaints.check(!plain(claim.as_str().expect("text")).contains(&phrase), || {
                format!("claims {claim}")
            });
        }
    }
    for (quantity, wanted) in expected["decomposition"].as_object().into_iter().flatten() {
        decomposition(quantity, wanted, &report["decomposition"][quantity], complaints);
    }
    for (name, wanted) in expected["observed"].as_object().into_iter().flatten() {
        let got = &report["observed"][name];
        complaints.check(near(got, wanted, &Json::Null), || {
            format!("observed {name} {got} is not {wanted}")
        });
    }
    predicted(&expected["predicted_after_fix"], &report["predicted"], complaints);
    for (flag, value) in expected["fix"]["set"]
        .as_object()
        .into_iter()
        .flatten()
        .filter(|(flag, _)| flag.starts_with('-'))
    {
        let got = &report["fix"]["set"][flag];
        complaints.check(got == value, || format!("fix sets {flag} to {got}, not {value}"));
    }
    for unset in list(&expected["fix"]["unset"]) {
        let flag = unset.as_str().and_then(|text| text.split(' ').next()).unwrap_or_default();
        complaints.check(list(&report["fix"]["unset"]).iter().any(|f| f == flag), || {
            format!("fix does not take {flag} away")
        });
    }
    if let Some(mechanism) = expected.get("mechanism") {
        complaints.check(report["mechanism"] == *mechanism, || {
            format!("mechanism {}", report["mechanism"])
        });
    }
    if let Some(metric) = expected.get("symptom_metric") {
        complaints.check(report["symptom_metric"] == *metric, || {
            format!("symptom {}", report["symptom_metric"])
        });
    }
    statistics(&expected["statistics"], &report["statistics"], complaints);
    let notices = list(&expected["must_notice"]).len();
    complaints.check(list(&report["notices"]).len() >= notices, || {
        format!("fewer than {notices} notices")
    });
}

fn list(json: &Json) -> &[Json] {
    json.as_array().map_or(&[], Vec::as_slice)
}

fn primary(wanted: &Json, got: &Json, complaints: &mut Complaints) {
    if wanted.is_null() {
        return complaints.check(got.is_null(), || format!("blames {}", got["factor"]));
    }
    for key in ["factor", "kind"] {
        complaints.check(got[key] == wanted[key], || {
            format!("primary {key} {} is not {}", got[key], wanted[key])
        });
    }
    // Descriptions of workloads and loads are free text; settings are exact.
    if wanted["kind"] == "config" {
        for key in ["before", "now"] {
            let same = got[key] == wanted[key] || near(&got[key], &wanted[key], &Json::Null);
            complaints.check(same, || format!("primary {key} {} is not {}", got[key], wanted[key]));
        }
    }
}

fn decomposition(name: &str, wanted: &Json, got: &Json, complaints: &mut Complaints) {
    for (key, value) in
        wanted.as_object().into_iter().flatten().filter(|(key, _)| !key.starts_with("tol"))
    {
        let number = &got[key];
        let holds = match value {
            Json::Number(_) => near(number, value, wanted),
            Json::String(text) => said(text, number, got),
            _ => false,
        };
        complaints.check(holds, || format!("{name}.{key} {number} is not {value}"));
    }
}

/// `66/66`, `>=0.97`, `<0.05`, `>0, growing`, `none`.
fn said(text: &str, number: &Json, entry: &Json) -> bool {
    let (condition, word) =
        text.split_once(", ").map_or((text, None), |(condition, word)| (condition, Some(word)));
    let holds = if let Some(bound) = condition.strip_prefix(">=") {
        number.as_f64() >= bound.parse().ok()
    } else if let Some(bound) = condition.strip_prefix('>') {
        number.as_f64() > bound.parse().ok()
    } else if let Some(bound) = condition.strip_prefix('<') {
        number
            .as_f64()
            .zip(bound.parse().ok())
            .is_some_and(|(number, bound): (f64, f64)| number < bound)
    } else {
        number == condition
    };
    holds && word.is_none_or(|word| entry["trend"] == word)
}

/// Within `tol` or `tol_rel` of the entry, else within 10 %.
fn near(got: &Json, wanted: &Json, entry: &Json) -> bool {
    let (Some(got), Some(wanted)) = (got.as_f64(), wanted.as_f64()) else { return false };
    let tolerance = match (entry["tol"].as_f64(), entry["tol_rel"].as_f64()) {
        (Some(absolute), _) => absolute,
        (None, Some(relative)) => relative * wanted.abs(),
        (None, None) => 0.1 * wanted.abs(),
    };
    (got - wanted).abs() <= tolerance + 1e-9
}

fn predicted(wanted: &Json, got: &Json, complaints: &mut Complaints) {
    let range = |json: &Json| Some((json[0].as_f64()?, json[1].as_f64()?));
    let Some((low, high)) = range(&wanted["range"]) else { return };
    let Some((lo, hi)) = range(&got["range"]) else {
        return complaints.check(false, || "nothing is predicted".to_owned());
    };
    complaints.check(got["metric"] == wanted["metric"], || {
        format!("predicts {}, not {}", got["metric"], wanted["metric"])
    });
    complaints.check(low <= lo && hi <= high, || {
        format!("predicts {lo:.1} to {hi:.1}, outside {low} to {high}")
    });
    if let Some((from, to)) = range(&wanted["must_overlap"]) {
        complaints.check(lo <= to && hi >= from, || {
            format!("predicts {lo:.1} to {hi:.1}, which misses {from} to {to}")
        });
    }
}

fn statistics(wanted: &Json, got: &Json, complaints: &mut Complaints) {
    for key in ["n_before", "n_now", "median_before", "median_now"] {
        if let Some(value) = wanted.get(key) {
            let entry = serde_json::json!({ "tol_rel": 0.01 });
            complaints.check(near(&got[key], value, &entry), || {
                format!("statistics {key} {} is not {value}", got[key])
            });
        }
    }
    if let Some(least) = wanted["p_value_gt"].as_f64() {
        complaints
            .check(got["p_value"].as_f64() > Some(least), || format!("p = {}", got["p_value"]));
    }
    for i in 0..2 {
        if let Some(bound) = wanted["ratio_ci"].get(i) {
            complaints.check(near(&got["ratio_ci"][i], bound, &Json::Null), || {
                format!("ratio interval {} is not {}", got["ratio_ci"], wanted["ratio_ci"])
            });
        }
    }
}

/// Everything that any command shows or saves about a case.
fn all_outputs(case: &Path) -> String {
    let evidence = collect::from_folder(case).expect("a case is collected");
    let report = report::build(&evidence);
    let mut out = Vec::new();
    for json in [false, true] {
        let args = ConfigsArgs { from_dir: Some(case.to_owned()), json, ..ConfigsArgs::default() };
        commands::configs(&args, &mut out).expect("configurations are listed");
        for log in &evidence.logs {
            let args = commands::LogsArgs {
                files: vec![case.join(&log.source)],
                json,
                all: true,
                plot: !json,
            };
            commands::logs(&args, &mut out).expect("a log is shown");
        }
    }
    let mut text = String::from_utf8(out).expect("output is text");
    for part in [
        render::text(&report),
        render::markdown(&report),
        render::html(&report),
        render::json(&report).to_string(),
        evidence.to_json().expect("evidence is saved"),
    ] {
        text.push_str(&part);
    }
    text
}

#[test]
fn no_output_holds_a_secret() {
    let mut n = 0;
    for case in cases() {
        let expected = expected(&case);
        let secrets: Vec<&str> =
            list(&expected["redact"]).iter().filter_map(Json::as_str).collect();
        if secrets.is_empty() {
            continue;
        }
        let outputs = all_outputs(&case);
        for secret in secrets {
            assert!(!outputs.contains(secret), "{} is shown of {}", secret, case.display());
            n += 1;
        }
    }
    assert!(n > 0, "no case plants a secret");
}

#[test]
fn saved_evidence_gives_the_same_report() {
    for case in cases() {
        let evidence = collect::from_folder(&case).expect("a case is collected");
        let saved = evidence.to_json().expect("evidence is saved");
        let read = Evidence::from_json(&saved).expect("evidence is read back");
        let render = |evidence: &Evidence| render::json(&report::build(evidence)).to_string();
        assert_eq!(render(&evidence), render(&read), "{}", case.display());
    }
}

#[test]
fn the_terminal_report_fits_a_screen() {
    for case in cases() {
        let evidence = collect::from_folder(&case).expect("a case is collected");
        let text = render::text(&report::build(&evidence));
        let lines = text.lines().count();
        let widest = text.lines().map(|line| line.chars().count()).max().unwrap_or(0);
        assert!(
            lines <= 44 && widest <= 120,
            "{}: {lines} lines of up to {widest}\n{text}",
            case.display()
        );
    }
}
