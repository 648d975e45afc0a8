//! A request's body is an object whose fields are all accepted, or an error that names one.

#![no_main]

use api::fields;
use serde_json::{Map, Value};

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    let Ok(object) = serde_json::from_slice::<Map<String, Value>>(bytes) else { return };
    for (path, table) in fields::document::ALL {
        if let Err(error) = table.check(&object, path) {
            assert!(!error.to_string().is_empty());
        }
    }
});
