//! What is in the files, and what the configuration needs of it.

use std::collections::BTreeMap;

use crate::files::Files;
use crate::names::{self, TensorSpec};
use crate::restore::{Scales, Values};
use crate::shard::{Entry, Shard};
use crate::{CheckpointError, DType, DraftHead, ModelConfig};

/// Needed tensors by canonical name: shard index and entry.
pub(crate) type Taken = BTreeMap<String, (usize, Entry)>;

/// Every tensor of the files by canonical name; what is needed is taken out one by one.
pub(crate) struct Found<'a> {
    files: &'a Files,
    shards: &'a [Shard],
    config: &'a ModelConfig,
    pub(crate) entries: Taken,
}

impl<'a> Found<'a> {
    /// All of them; a name that stands in two files is an error.
    pub(crate) fn new(
        files: &'a Files,
        shards: &'a [Shard],
        config: &'a ModelConfig,
        all: Vec<(String, usize, Entry)>,
    ) -> Result<Self, CheckpointError> {
        let mut entries = Taken::new();
        for (name, i, entry) in all {
            if let Some((other, twin)) = entries.get(&name) {
                return Err(CheckpointError::tensor(
                    &entry.name,
                    &shards[i].name,
                    format!(
                        "it is also in {} as `{}`; one must go",
                        shards[*other].name, twin.name
                    ),
                ));
            }
            entries.insert(name, (i, entry));
        }
        Ok(Self { files, shards, config, entries })
    }

    /// Takes every tensor of the target model.
    pub(crate) fn target(&mut self) -> Result<Taken, CheckpointError> {
        let specs = names::target(self.config);
        specs.into_iter().map(|spec| Ok((spec.name.clone(), self.take(&spec)?))).collect()
    }

    fn take(&mut self, spec: &TensorSpec) -> Result<(usize, Entry), CheckpointError> {
        let Some((i, mut entry)) = self.entries.remove(&spec.name) else {
            let (name, shape) = (&spec.name, &spec.shape);
            let problem = match name.as_str() {
                names::HEAD => format!(
                    "missing; `tie_word_embeddings` is false, so the files must hold it, {shape:?}"
                ),
                _ => format!(
                    "missing, also as `{}`; the configuration implies {shape:?}",
                    self.files.spelling(name, self.config)
                ),
            };
            return Err(CheckpointError::tensor(name, &self.files.location(), problem));
        };
        let shard = &self.shards[i];
        check_shape(&entry, &spec.shape, &shard.name)?;
        match entry.dtype {
            Ok(DType::F8E4m3) => entry.stored.values = self.scales(spec, &entry, shard)?,
            Ok(_) => {}
            Err(_) => return Err(shard.unreadable(&entry)),
        }
        Ok((i, entry))
    }

    /// Takes the scales of an FP8 weight.
    fn scales(
        &mut self,
        spec: &TensorSpec,
        entry: &Entry,
        shard: &Shard,
    ) -> Result<Values, CheckpointError> {
        let bad = |problem: String| CheckpointError::tensor(&entry.name, &shard.name, problem);
        let Some(fp8) = &self.config.fp8 else {
            return Err(bad(
                "its type is F8_E4M3, but the configuration has no `quantization_config`".into(),
            ));
        };
        let [rows, columns] = spec.shape[..] else {
            return Err(bad("its type is F8_E4M3; only matrices may be".into()));
        };
        let module = spec.name.trim_end_matches(".weight");
        if let Some(listed) = fp8.excludes(module) {
            return Err(bad(format!(
                "its type is F8_E4M3, but `modules_to_not_convert` lists {listed}"
            )));
        }
        let name = format!("{}_scale_inv", spec.name);
        let Some((i, scales)) = self.entries.remove(&name) else {
            return Err(bad(format!("its scales, `{}_scale_inv`, are missing", entry.name)));
        };
        let [n, k] = fp8.block;
        check_shape(&scales, &[rows.div_ceil(n), columns.div_ceil(k)], &self.shards[i].name)?;
        match scales.dtype {
            Ok(DType::F32 | DType::Bf16 | DType::F16) => {}
            _ => return Err(self.shards[i].unreadable(&scales)),
        }
        Ok(Values::Scaled(Box::new(Scales { shard: i, entry: scales, block: fp8.block })))
    }

    /// All of the draft head or nothing of it; a part of it is a damaged checkpoint.
    pub(crate) fn draft_head(&mut self, tensors: &mut Taken) -> Result<DraftHead, CheckpointError> {
        if self.config.n_mtp_layers == 0 {
            return Ok(DraftHead::NotDeclared);
        }
        if !self.entries.keys().any(|name| name.starts_with(names::MTP_PREFIX)) {
            return Ok(DraftHead::Missing);
        }
        for spec in names::draft_head(self.config) {
            let entry = self.take(&spec)?;
            tensors.insert(spec.name, entry);
        }
        Ok(DraftHead::Present)
    }
}

/// A tensor must have the shape that the configuration implies.
pub(crate) fn check_shape(
    entry: &Entry,
    shape: &[usize],
    file: &str,
) -> Result<(), CheckpointError> {
    match entry.shape == shape {
        true => Ok(()),
        false => Err(CheckpointError::tensor(
            &entry.name,
            file,
            format!("its shape is {:?}; {shape:?} is needed", entry.shape),
        )),
    }
}
