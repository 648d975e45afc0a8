//! Shapes of published models, for plans from a name alone: a log names its model, not its sizes.

use super::shape::{DeltaShape, FeedForward, ModelShape};

/// Sizes that differ between the members of the family; the rest is common to all.
struct Row {
    /// The end of the name, in lower case.
    size: &'static str,
    hidden: u64,
    n_layers: u64,
    feed_forward: FeedForward,
    n_heads: u64,
    n_kv_heads: u64,
    n_value_heads: u64,
    tied: bool,
}

const fn dense(inner: u64) -> FeedForward {
    FeedForward::Dense { inner }
}

#[rustfmt::skip]
const ROWS: [Row; 6] = [
    Row { size: "0.8b", hidden: 1024, n_layers: 24, feed_forward: dense(3584), n_heads: 8, n_kv_heads: 2, n_value_heads: 16, tied: true },
    Row { size: "2b", hidden: 2048, n_layers: 24, feed_forward: dense(6144), n_heads: 8, n_kv_heads: 2, n_value_heads: 16, tied: true },
    Row { size: "4b", hidden: 2560, n_layers: 32, feed_forward: dense(9216), n_heads: 16, n_kv_heads: 4, n_value_heads: 32, tied: true },
    Row { size: "9b", hidden: 4096, n_layers: 32, feed_forward: dense(12_288), n_heads: 16, n_kv_heads: 4, n_value_heads: 32, tied: false },
    Row { size: "27b", hidden: 5120, n_layers: 64, feed_forward: dense(17_408), n_heads: 24, n_kv_heads: 4, n_value_heads: 48, tied: false },
    Row { size: "35b-a3b", hidden: 2048, n_layers: 40, feed_forward: FeedForward::Experts { n: 256, top: 8, inner: 512, shared: 512 }, n_heads: 16, n_kv_heads: 2, n_value_heads: 32, tied: false },
];

/// One layer in this many attends to everything; the others carry a recurrent state.
const INTERVAL: u64 = 4;
/// Parameters of the vision tower without its merger, which depends on the hidden width.
const VISION: u64 = 27 * (4 * 1152 * 1152 + 2 * 1152 * 4304) + 1152 * (3 * 2 * 256 + 2304);
/// Width of four merged patches.
const MERGED: u64 = 4 * 1152;

/// The shape of a published Qwen3.5 or Qwen3.6 model by its name or path, with or without owner.
///
/// A quantisation in the name counts: `Qwen3.6-27B-FP8`.
#[must_use]
pub fn known(name: &str) -> Option<ModelShape> {
    let last = name.trim_end_matches('/').rsplit('/').next()?.to_ascii_lowercase();
    let size = ["qwen3.5-", "qwen3.6-"].iter().find_map(|family| last.strip_prefix(family))?;
    let (row, quantisation) = ROWS.iter().find_map(|row| {
        let rest = size.strip_prefix(row.size)?;
        // `2b` must not match the beginning of another size.
        (rest.is_empty() || rest.starts_with('-')).then_some((row, rest))
    })?;
    let layer_bytes_per_param = match quantisation {
        q if q.contains("fp8") => 1.0,
        q if q.contains("awq") || q.contains("int4") || q.contains("fp4") => 0.52,
        _ => 2.0,
    };
    let n_attention_layers = row.n_layers / INTERVAL;
    Some(ModelShape {
        name: name.to_owned(),
        hidden: row.hidden,
        vocab: 248_320,
        tied: row.tied,
        n_attention_layers,
        n_heads: row.n_heads,
        n_kv_heads: row.n_kv_heads,
        head_dim: 256,
        output_gate: true,
        delta: Some(DeltaShape {
            n_layers: row.n_layers - n_attention_layers,
            n_key_heads: 16,
            n_value_heads: row.n_value_heads,
            key_dim: 128,
            value_dim: 128,
            conv_kernel: 4,
        }),
        feed_forward: row.feed_forward,
        n_mtp_layers: 1,
        vision_params: VISION + MERGED * (MERGED + row.hidden),
        max_positions: 262_144,
        layer_bytes_per_param,
    })
}

#[cfg(test)]
mod tests {
    use super::super::shape::tests::qwen_27b;
    use super::known;

    #[test]
    fn the_table_agrees_with_a_published_config() {
        assert_eq!(known("Qwen3.6-27B"), Some(qwen_27b()));
    }

    #[test]
    fn names_say_how_many_parameters_there_are() {
        for (name, billions) in
            [("Qwen3.5-2B", 1.9), ("Qwen/Qwen3.5-9B", 9.0), ("Qwen3.6-35B-A3B", 35.0)]
        {
            let shape = known(name).unwrap();
            let language = shape.weight_bytes(1) / 2.0 - shape.vision_params as f64;
            assert!((language / 1e9 / billions - 1.0).abs() < 0.1, "{name}: {language}");
        }
    }

    #[test]
    fn paths_and_quantisations_are_understood_and_others_are_not_guessed() {
        assert_eq!(known("/models/Qwen3.6-27B-FP8/").unwrap().layer_bytes_per_param, 1.0);
        for name in ["", "Qwen3.6-27", "Qwen3.6-27Bx", "Qwen3.6-7B", "Qwen3-4B", "Llama-3-8B"] {
            assert_eq!(known(name), None, "{name}");
        }
    }
}
