//! Keeps what a user wrote apart from what the template wrote, through the rendering of a template.
//!
//! Markers begin and end with characters that text and white space functions leave alone (`<`,
//! `>`). Before rendering, these characters are replaced in everything that comes from the request,
//! each by one private character that occurs nowhere in the request or in the template. A marker
//! found in the rendered text was therefore written by the template; afterwards the private
//! characters are put back. One character for one keeps lengths, `trim`, `split` and JSON intact,
//! and guarding both ends of a marker means that it cannot be put together from template text and
//! user text either.

use std::collections::BTreeSet;

use serde_json::Value as Json;

/// Which characters are replaced by which; by default none.
#[derive(Default)]
pub(crate) struct Guard {
    /// Guarded character and its stand-in.
    pairs: Vec<(char, char)>,
}

/// The guarded characters of a set of markers: their first and last ones, where these are neither
/// letters, digits nor white space.
pub(crate) fn guarded_chars<'a>(markers: impl Iterator<Item = &'a str>) -> BTreeSet<char> {
    let ends = markers.flat_map(|marker| [marker.chars().next(), marker.chars().next_back()]);
    ends.flatten().filter(|c| !c.is_alphanumeric() && !c.is_whitespace()).collect()
}

impl Guard {
    /// Chooses stand-ins that do not occur in `texts`; `None` if there are none left.
    pub(crate) fn new<'a>(
        chars: &BTreeSet<char>,
        texts: impl Iterator<Item = &'a str>,
    ) -> Option<Guard> {
        const PRIVATE: std::ops::RangeInclusive<char> = '\u{F0000}'..='\u{10FFFD}';
        let used: BTreeSet<char> =
            texts.flat_map(str::chars).filter(|c| PRIVATE.contains(c)).collect();
        let mut free = PRIVATE.filter(|c| !used.contains(c));
        let pairs = chars.iter().map(|&c| Some((c, free.next()?))).collect::<Option<_>>()?;
        Some(Guard { pairs })
    }

    /// Replaces the guarded characters of one text.
    pub(crate) fn hide(&self, text: &str) -> String {
        let stand_in = |c| self.pairs.iter().find(|(from, _)| *from == c).map_or(c, |&(_, to)| to);
        text.chars().map(stand_in).collect()
    }

    /// Undoes [`Guard::hide`].
    pub(crate) fn reveal(&self, text: &str) -> String {
        let original = |c| self.pairs.iter().find(|(_, to)| *to == c).map_or(c, |&(from, _)| from);
        text.chars().map(original).collect()
    }

    /// A JSON value for the template, with every string in it (keys too) hidden.
    pub(crate) fn hide_value(&self, json: &Json) -> minijinja::Value {
        use minijinja::Value;
        match json {
            Json::Null => Value::from(()),
            Json::Bool(b) => Value::from(*b),
            Json::Number(n) => match (n.as_i64(), n.as_u64()) {
                (Some(i), _) => Value::from(i),
                (None, Some(u)) => Value::from(u),
                (None, None) => Value::from(n.as_f64().unwrap_or(f64::NAN)),
            },
            Json::String(s) => Value::from(self.hide(s)),
            Json::Array(items) => items.iter().map(|item| self.hide_value(item)).collect(),
            Json::Object(map) => Value::from_pairs(
                map.iter().map(|(key, value)| (self.hide(key), self.hide_value(value))),
            ),
        }
    }
}

/// Every string of a JSON value, keys included.
pub(crate) fn strings(json: &Json) -> Vec<&str> {
    let mut found = Vec::new();
    let mut open = vec![json];
    while let Some(json) = open.pop() {
        match json {
            Json::String(s) => found.push(s.as_str()),
            Json::Array(items) => open.extend(items),
            Json::Object(map) => {
                found.extend(map.keys().map(String::as_str));
                open.extend(map.values());
            }
            _ => {}
        }
    }
    found
}
