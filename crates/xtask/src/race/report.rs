//! The table of a race.

use std::fmt::Write;

use super::{Kind, Row, Turn};

/// One kind of work: a line for each row and peer. `turns[racer][round]`; the first racer is ours.
pub(crate) fn table(kind: Kind, names: &[String], turns: &[Vec<Turn>]) -> String {
    let mut out = String::new();
    for row in kind.rows() {
        let speeds = |racer: usize| -> Vec<f64> {
            turns[racer].iter().filter_map(|turn| turn.speeds.get(&row).copied()).collect()
        };
        let ours = speeds(0);
        for (i, name) in names.iter().enumerate().skip(1) {
            let theirs = speeds(i);
            if ours.is_empty() || theirs.is_empty() {
                let _ = writeln!(out, "{:<16} {name}: not measured", title(row));
                continue;
            }
            // Neighbours in time are compared, not the medians of all.
            let ratios: Vec<f64> =
                ours.iter().zip(&theirs).map(|(ours, theirs)| ours / theirs).collect();
            let [low, mid, high] = spread(&ratios);
            let _ = writeln!(
                out,
                "{:<16} {:>8.1} tok/s  {name:<14} {:>8.1} tok/s  ratio {mid:.2} ({low:.2} .. {high:.2})",
                title(row),
                spread(&ours)[1],
                spread(&theirs)[1],
            );
        }
    }
    for (name, turns) in names.iter().zip(turns) {
        let of = |what: fn(&Turn) -> f64| spread(&turns.iter().map(what).collect::<Vec<_>>());
        let ([_, bandwidth, _], [_, foreign, most]) = (of(|t| t.bandwidth), of(|t| t.foreign));
        let _ = writeln!(
            out,
            "  beside {name}: memory read {bandwidth:.1} GB/s; others had {:.0} % of the cores (at most {:.0} %)",
            foreign * 100.0,
            most * 100.0
        );
    }
    out
}

fn title(row: Row) -> String {
    match row {
        Row::Prefill(n) => format!("prefill {n}"),
        Row::Decode(depth) => format!("decode at {depth}"),
        Row::Batch(n) => format!("{n} sequences"),
        Row::Verify(n) => format!("verify {n} rows"),
    }
}

/// Smallest, middle and largest.
fn spread(values: &[f64]) -> [f64; 3] {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let n = sorted.len();
    [sorted[0], (sorted[(n - 1) / 2] + sorted[n / 2]) / 2.0, sorted[n - 1]]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ratios_are_of_neighbouring_rounds() {
        let turn = |speed: f64| Turn {
            speeds: [(Row::Decode(0), speed)].into(),
            bandwidth: 30.0,
            foreign: 0.05,
        };
        // The machine slows down in the second round; the ratio does not.
        let turns =
            [vec![turn(40.0), turn(20.0), turn(40.0)], vec![turn(20.0), turn(10.0), turn(20.0)]];
        let text = table(Kind::Decode, &["outrider".into(), "peer".into()], &turns);
        assert!(text.contains("40.0 tok/s  peer"), "{text}");
        assert!(text.contains("ratio 2.00 (2.00 .. 2.00)"), "{text}");
        assert!(text.contains("others had 5 % of the cores"), "{text}");
    }

    #[test]
    fn a_row_that_a_peer_did_not_print_is_said() {
        let turn = |speeds: &[(Row, f64)]| Turn {
            speeds: speeds.iter().copied().collect(),
            bandwidth: 30.0,
            foreign: 0.0,
        };
        let turns = [vec![turn(&[(Row::Batch(16), 9.0)])], vec![turn(&[])]];
        let text = table(Kind::Batch, &["outrider".into(), "peer".into()], &turns);
        assert!(text.contains("16 sequences     peer: not measured"), "{text}");
    }
}
