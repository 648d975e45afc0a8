//! `quantization_config`: matrices in 8-bit floats with a scale for each block.

use serde_json::Value;

use crate::CheckpointError;
use crate::fields::Fields;

/// FP8 weights (E4M3) with `weight_scale_inv`, as DeepSeek's and Qwen's FP8 checkpoints have them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fp8 {
    /// Rows and columns that share a scale.
    pub block: [usize; 2],
    /// Modules that keep another type; a module within one of them does too.
    pub modules_to_not_convert: Vec<String>,
}

const KEY: &str = "quantization_config";

impl Fp8 {
    /// Reads the entry, if there is one, and refuses every other method by name.
    pub(crate) fn read(text: Fields<'_>) -> Result<Option<Self>, CheckpointError> {
        let Some(quantization) = text.nested(KEY)?.map(Fields::alone) else { return Ok(None) };
        match quantization.text("quant_method")? {
            Some("fp8") => {}
            Some(other) => {
                return Err(text.error(format!(
                    "`{KEY}.quant_method` is \"{other}\"; \"fp8\" with `weight_block_size` is \
                     supported, or take the bfloat16 checkpoint"
                )));
            }
            None => return Err(text.error(format!("`{KEY}.quant_method` is missing"))),
        }
        for (key, wanted) in [("fmt", "e4m3"), ("activation_scheme", "dynamic")] {
            if let Some(found) = quantization.text(key)?
                && found != wanted
            {
                return Err(text.error(format!(
                    "`{KEY}.{key}` is \"{found}\"; only \"{wanted}\" is supported"
                )));
            }
        }
        let wanted = "two whole numbers above 0 ([128, 128])";
        let block = match quantization.get("weight_block_size") {
            Some(Value::Array(list)) if list.len() == 2 => {
                let size = |value: &Value| {
                    value.as_u64().and_then(|n| usize::try_from(n).ok()).filter(|n| *n > 0)
                };
                size(&list[0]).zip(size(&list[1])).map(|(rows, columns)| [rows, columns])
            }
            _ => None,
        };
        let Some(block) = block else {
            let found = quantization.get("weight_block_size").unwrap_or(&Value::Null);
            return Err(quantization.wrong(&format!("{KEY}.weight_block_size"), found, wanted));
        };
        let modules_to_not_convert = match quantization.get("modules_to_not_convert") {
            None => Vec::new(),
            Some(list) => {
                let names = list.as_array().and_then(|list| {
                    list.iter().map(|name| name.as_str().map(str::to_string)).collect()
                });
                names.ok_or_else(|| {
                    let key = format!("{KEY}.modules_to_not_convert");
                    quantization.wrong(&key, list, "a list of names")
                })?
            }
        };
        Ok(Some(Self { block, modules_to_not_convert }))
    }

    /// The entry of `modules_to_not_convert` that a module falls under. Entries are whole names,
    /// also with the prefix of composite checkpoints, or a part at the end of a name.
    pub(crate) fn excludes(&self, module: &str) -> Option<&str> {
        let is_within = |listed: &&String| {
            let listed = crate::names::canonical(listed);
            let is_part = module.split_once(listed.as_str()).is_some_and(|(before, after)| {
                (before.is_empty() || before.ends_with('.'))
                    && (after.is_empty() || after.starts_with('.'))
            });
            !listed.is_empty() && is_part
        };
        self.modules_to_not_convert.iter().find(is_within).map(String::as_str)
    }
}
