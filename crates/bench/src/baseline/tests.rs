//! Saving, comparing and following runs that are made up.

use serde_json::{Value, json};

use super::{BaselineError, Entry, Metric, Store, Verdict, check, history};
use crate::report::{Run, SCHEMA, Workload};
use crate::sample::tests::sample;
use crate::summary::Summary;

/// Twelve answers at about `tok_s`, the first token after about `ttft_s`.
fn run(tok_s: f64, ttft_s: f64) -> Run {
    let answer = |i: u32| {
        let wobble = 1.0 + 0.01 * (f64::from(i * 7 % 12) - 5.5) / 5.5;
        let seconds = 100.0 / (tok_s * wobble);
        let first = ttft_s * wobble;
        sample(f64::from(i), &[first, first + seconds / 2.0, first + seconds], Some(101))
    };
    Run {
        schema: SCHEMA.into(),
        taken_at: "2026-11-30T08:00:00Z".into(),
        target: "http://127.0.0.1:1/v1".into(),
        workload: Workload {
            id: "chat-v1".into(),
            concurrency: json!(1),
            rate_per_s: None,
            temperature: Some(0.0),
            thinking: false,
            max_tokens: 256,
        },
        requests: (0..12).map(answer).collect(),
        dispatch_delay_s: None,
        failures: Vec::new(),
        summary: Summary { classes: Vec::new(), steady: None, goodput: None, drift: None },
        server: Default::default(),
        notices: Vec::new(),
    }
}

fn entry(day: usize, run: Run) -> Entry {
    Entry {
        schema: "baseline/1".into(),
        saved_at: format!("2026-11-{day:02}T08:00:00Z"),
        configuration: Value::Null,
        run,
    }
}

fn verdicts(entries: &[Entry], now: &Run) -> Vec<Verdict> {
    check("main", entries, now).unwrap().rows.iter().map(|row| row.verdict).collect()
}

#[test]
fn runs_are_appended_and_read_back_with_every_request() {
    let folder = tempfile::tempdir().unwrap();
    let store = Store::new(&folder.path().join("deep/baselines"));
    assert_eq!(store.list().unwrap(), []);
    store.save("main", &run(70.0, 0.2), json!({"spec.num_steps": 3})).unwrap();
    store.save("main", &run(69.0, 0.2), Value::Null).unwrap();
    let (entries, n_unreadable) = store.entries("main").unwrap();
    assert_eq!((entries.len(), n_unreadable), (2, 0));
    assert_eq!(entries[0].configuration["spec.num_steps"], 3);
    assert_eq!(entries[0].run.requests.len(), 12);
    let listed = store.list().unwrap();
    assert_eq!((listed[0].name.as_str(), listed[0].n_entries), ("main", 2));
    assert!(matches!(store.entries("other"), Err(BaselineError::Missing(_))));
}

#[test]
fn a_cut_line_costs_only_itself() {
    let folder = tempfile::tempdir().unwrap();
    let store = Store::new(folder.path());
    store.save("main", &run(70.0, 0.2), Value::Null).unwrap();
    let path = folder.path().join("main.jsonl");
    let mut bytes = std::fs::read(&path).unwrap();
    bytes.extend_from_slice(b"{\"schema\":\"baseline/1\",\"sav\xff");
    std::fs::write(&path, bytes).unwrap();
    store.save("main", &run(69.0, 0.2), Value::Null).unwrap();
    let (entries, n_unreadable) = store.entries("main").unwrap();
    assert_eq!((entries.len(), n_unreadable), (2, 1));
}

#[test]
fn names_cannot_leave_the_folder() {
    let store = Store::new(std::path::Path::new("/nonexistent"));
    for name in ["", "../x", "a/b", ".hidden", "-x", "a b", &"x".repeat(65)] {
        let saved = store.save(name, &run(70.0, 0.2), Value::Null);
        assert!(matches!(saved, Err(BaselineError::Name(_))), "{name}");
    }
}

#[test]
fn a_slower_server_is_worse_and_a_faster_one_better() {
    let entries = [entry(1, run(70.0, 0.2))];
    let worse = check("main", &entries, &run(40.0, 0.2)).unwrap();
    assert_eq!((worse.verdict, worse.exit_code()), (Verdict::Worse, 10));
    let row = &worse.rows[0];
    assert_eq!((row.metric, row.verdict), (Metric::DecodeTokS, Verdict::Worse));
    let change = row.change.unwrap();
    assert!((change.value + 30.0 / 70.0).abs() < 0.01 && change.hi < -0.4);
    assert_eq!(worse.rows[1].verdict, Verdict::Same, "the first token came as before");
    assert!(worse.text().contains("-42.9 %"), "{}", worse.text());
    let better = check("main", &entries, &run(80.0, 0.1)).unwrap();
    assert_eq!((better.verdict, better.exit_code()), (Verdict::Better, 0));
    assert_eq!(verdicts(&entries, &run(70.0, 0.4)), [Verdict::Same, Verdict::Worse]);
}

#[test]
fn noise_and_chance_are_not_a_difference() {
    let entries = [entry(1, run(70.0, 0.2))];
    assert_eq!(check("main", &entries, &run(70.3, 0.2)).unwrap().exit_code(), 0);
    // Ranks see these 3 % clearly, but they are within the usual noise.
    assert_eq!(verdicts(&entries, &run(68.0, 0.2))[0], Verdict::Same);
    // Runs that never differed make 3 % remarkable, runs that did make 8 % usual.
    let quiet: Vec<Entry> = (1..=4).map(|day| entry(day, run(70.0, 0.2))).collect();
    assert_eq!(verdicts(&quiet, &run(68.0, 0.2))[0], Verdict::Worse);
    let loud: Vec<Entry> =
        [64.0, 76.0, 66.0, 74.0, 70.0].map(|tok_s| entry(1, run(tok_s, 0.2))).to_vec();
    assert_eq!(verdicts(&loud, &run(64.5, 0.2))[0], Verdict::Same);
}

#[test]
fn too_few_answers_decide_nothing() {
    let mut few = run(40.0, 0.2);
    few.requests.truncate(4);
    let found = check("main", &[entry(1, run(70.0, 0.2))], &few).unwrap();
    assert_eq!((found.verdict, found.exit_code()), (Verdict::Undecided, 12));
    assert!(found.text().contains("too few answers"));
    few.requests.clear();
    assert_eq!(check("main", &[entry(1, few.clone())], &few).unwrap().exit_code(), 12);
}

#[test]
fn other_work_is_not_compared() {
    let entries = [entry(1, run(70.0, 0.2))];
    let mut other = run(40.0, 0.2);
    other.workload.concurrency = json!(4);
    match check("main", &entries, &other) {
        Err(BaselineError::DifferentWorkload { what, .. }) => assert_eq!(what, "concurrency"),
        found => panic!("{found:?}"),
    }
    assert!(matches!(check("main", &[], &other), Err(BaselineError::Missing(_))));
    // Among several, the last with the same workload is taken.
    let mixed = [entry(1, run(70.0, 0.2)), entry(2, other.clone())];
    assert_eq!(check("main", &mixed, &run(70.0, 0.2)).unwrap().saved_at, entries[0].saved_at);
}

#[test]
fn longer_answers_are_said() {
    let mut longer = run(70.0, 0.2);
    for sample in &mut longer.requests {
        sample.out = 160;
    }
    let found = check("main", &[entry(1, run(70.0, 0.2))], &longer).unwrap();
    assert!(found.notices[0].contains("answers had 101 tokens then and have 160 now"));
}

#[test]
fn a_history_tells_when() {
    let entries: Vec<Entry> = (1..=16)
        .map(|day| {
            let level = if day < 9 { 70.0 } else { 41.0 };
            entry(day, run(level + 0.1 * (day % 3) as f64, 0.2))
        })
        .collect();
    let all = history(&entries);
    let speed = &all[0];
    assert_eq!(
        (speed.metric, speed.points.len(), speed.changes.len()),
        (Metric::DecodeTokS, 16, 1)
    );
    assert!(speed.text().contains("at 2026-11-09"), "{}", speed.text());
    assert!(all[1].changes.is_empty(), "the first token came as before");
    let short = &history(&entries[..5])[0];
    assert!(!short.enough && short.text().contains("from 10 runs on"));
    assert!(history(&[]).is_empty());
}
