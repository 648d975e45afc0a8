//! A log becomes windows, and a diagnosis of it a report without control characters.

#![no_main]

use diagnose::evidence::{Evidence, Item, Side};
use diagnose::{logs, render, report};

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    // A zero byte parts what was before from what is now.
    let mut parts = bytes.splitn(2, |byte| *byte == 0);
    let mut evidence = Evidence::new();
    for (side, part) in [Side::Now, Side::Before].into_iter().zip(&mut parts) {
        let mut reader = logs::LogReader::default();
        // In two pieces, as a file is read.
        let (a, b) = part.split_at(part.len() / 2);
        reader.feed(a);
        reader.feed(b);
        let what = reader.finish();
        evidence.logs.push(Item { side, source: "fuzz.log".to_owned(), what });
    }
    let report = report::build(&evidence);
    let text = render::text(&report);
    assert!(!text.chars().any(|c| c.is_control() && c != '\n'), "{text:?}");
    let json = render::json(&report).to_string();
    assert!(serde_json::from_str::<serde_json::Value>(&json).is_ok());
    let saved = evidence.to_json().expect("evidence is JSON");
    let read = Evidence::from_json(&saved).expect("what was saved is read");
    assert_eq!(render::json(&report::build(&read)).to_string(), json, "saved evidence gives the same report");
});
