//! The default of `--mem-fraction-static`: what each release reserves beside weights and pools.

use super::super::args::EngineArgs;
use super::super::version::Version;

/// Factor for a model with a vision tower: the releases count its 24 assumed layers of width 1152.
const MULTIMODAL: f64 =
    0.95 * (1.0 - 0.1 * (24.0 * 1152.0 * 1152.0 / (24.0 * 1024.0 * 1024.0) - 1.0));

/// The fraction that `version` chooses when none is given.
pub(super) fn default_fraction(args: &EngineArgs, version: Version) -> f64 {
    let mib = args.device.memory_gib * 1024.0;
    let factor = if args.model.vision_params > 0 { MULTIMODAL } else { 1.0 };
    let tp = args.flags.tp as f64;
    let speculative = args.flags.draft_depth > 0;
    if version < Version(0, 5, 2) {
        return by_width(args.flags.tp) * factor;
    }
    if version < Version(0, 5, 9) {
        return (mib - reserved_by_size_mib(mib, tp, speculative)) / mib * factor;
    }
    let newest = Version(0, 5, 23) <= version;
    let chunk = args.flags.chunked_prefill.unwrap_or(default_chunk(mib, newest)).max(2048) as f64;
    let graphs = graph_max_batch(mib, args, newest);
    // Prefill graphs (one per captured size, 8 MiB each) came with 0.5.12.
    let prefill_graphs = if version < Version(0, 5, 12) { 0.0 } else { n_prefill_graphs(chunk) };
    let mut reserved = 512.0 + 1.5 * chunk + 2.0 * graphs + 128.0 * tp + 8.0 * prefill_graphs;
    if mib > 60.0 * 1024.0 {
        reserved = reserved.max(10_240.0);
    }
    if speculative && !newest {
        reserved += if version < Version(0, 5, 11) { 2048.0 } else { 4096.0 };
    }
    // The release rounds the fraction before it applies the factor.
    ((mib - reserved) / mib * 1000.0).round() / 1000.0 * factor
}

/// 0.4.6: a table by parallel width.
fn by_width(tp: usize) -> f64 {
    match tp {
        1 => 0.88,
        2 | 3 => 0.87,
        4..=7 => 0.85,
        8..=15 => 0.81,
        _ => 0.79,
    }
}

/// 0.5.2 to 0.5.8: GiB by size of the device.
fn reserved_by_size_mib(mib: f64, tp: f64, speculative: bool) -> f64 {
    let gib = mib / 1024.0;
    let base = if gib < 35.0 {
        2.8 + tp / 10.0
    } else if gib < 90.0 {
        9.5 + tp / 2.0
    } else if gib < 160.0 {
        12.0 + tp / 2.0
    } else {
        32.0
    };
    (base + if speculative { 2.0 } else { 0.0 }) * 1024.0
}

fn default_chunk(mib: f64, newest: bool) -> u64 {
    match mib / 1024.0 {
        gib if gib < 20.0 => 2048,
        gib if gib < 35.0 => {
            if newest {
                4096
            } else {
                2048
            }
        }
        gib if gib < 60.0 => 4096,
        gib if gib < 160.0 => 8192,
        _ => 16_384,
    }
}

/// Largest captured decode batch.
fn graph_max_batch(mib: f64, args: &EngineArgs, newest: bool) -> f64 {
    let wide = args.flags.tp >= 4;
    let (narrow_size, wide_size) = match mib / 1024.0 {
        gib if gib < 20.0 => (8, 8),
        gib if gib < 35.0 => {
            if newest {
                (48, 160)
            } else {
                (24, 80)
            }
        }
        gib if gib < 60.0 => (32, 160),
        gib if gib < 160.0 => (256, 512),
        _ => (512, 512),
    };
    let size = if wide { wide_size } else { narrow_size };
    match args.flags.max_running {
        Some(asked) if newest => size.min(asked) as f64,
        _ => size as f64,
    }
}

/// Captured prefill sizes up to `chunk`: (first, last, step).
fn n_prefill_graphs(chunk: f64) -> f64 {
    const SIZES: [(u64, u64, u64); 6] = [
        (4, 32, 4),
        (48, 256, 16),
        (288, 512, 32),
        (576, 1024, 64),
        (1280, 4096, 256),
        (4608, u64::MAX, 512),
    ];
    let chunk = chunk as u64;
    let n = |(first, last, step): &(u64, u64, u64)| {
        let last = chunk.min(*last);
        if last < *first { 0 } else { (last - first) / step + 1 }
    };
    SIZES.iter().map(n).sum::<u64>() as f64
}

#[cfg(test)]
mod tests {
    use super::super::super::args::{Engine, EngineArgs, Flags};
    use super::super::super::shape::tests::qwen_27b;
    use super::super::super::version::Version;
    use super::default_fraction;

    /// The default on two cards that report 49140 MiB, with and without the vision factor.
    fn check(version: Version, draft_depth: u64, text: f64, multimodal: f64) {
        let mut args = EngineArgs {
            engine: Engine::Sglang(version),
            model: qwen_27b(),
            device: "2x49140MiB@768GB/s".parse().unwrap(),
            flags: Flags { tp: 2, draft_depth, max_running: Some(16), ..Flags::unset() },
            observed: None,
            load_tokens: 1,
            acceptance: None,
        };
        assert!((default_fraction(&args, version) - multimodal).abs() < 6e-4);
        args.model.vision_params = 0;
        assert!((default_fraction(&args, version) - text).abs() < 6e-4);
    }

    #[test]
    fn defaults_of_a_48_gb_card() {
        check(Version(0, 5, 12), 0, 0.850, 0.786);
        check(Version(0, 5, 12), 3, 0.767, 0.709);
        check(Version(0, 5, 9), 3, 0.816, 0.755);
        check(Version(0, 5, 23), 3, 0.851, 0.787);
    }

    #[test]
    fn older_releases_reserve_by_size() {
        check(Version(0, 4, 6), 0, 0.87, 0.87 * 0.9248);
        check(Version(0, 5, 5), 0, 0.7812, 0.7224);
    }
}
