//! Release numbers of the engines.

use std::fmt;
use std::str::FromStr;

use super::EngineError;

/// A release such as `0.5.10`; what follows the third number (`.post1`, `rc2`) is not kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Version(pub u32, pub u32, pub u32);

impl FromStr for Version {
    type Err = EngineError;

    fn from_str(text: &str) -> Result<Version, EngineError> {
        let error = || EngineError::Syntax {
            what: "version",
            text: text.to_owned(),
            expected: "numbers with points, such as 0.5.10",
        };
        let mut parts = text.trim_start_matches('v').split('.').map(|part| {
            let end = part.find(|c: char| !c.is_ascii_digit()).unwrap_or(part.len());
            part[..end].parse().map_err(|_| error())
        });
        let major = parts.next().ok_or_else(error)??;
        let minor = parts.next().transpose()?.unwrap_or(0);
        let patch = parts.next().transpose()?.unwrap_or(0);
        Ok(Version(major, minor, patch))
    }
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}.{}", self.0, self.1, self.2)
    }
}

#[cfg(test)]
mod tests {
    use super::Version;

    #[test]
    fn releases_are_ordered() {
        let read = |text: &str| text.parse::<Version>().unwrap();
        assert_eq!(read("0.5.10.post1"), Version(0, 5, 10));
        assert_eq!(read("v0.33"), Version(0, 33, 0));
        assert_eq!(read("0.5.12rc1"), Version(0, 5, 12));
        assert!(read("0.5.9") < read("0.5.10"));
        assert!("newest".parse::<Version>().is_err());
        assert!("".parse::<Version>().is_err());
    }
}
