//! GGUF files for tests, written independently of the reader under test.

mod convert;
mod quantise;

pub use convert::{converted, skeleton, tokenizer};
pub use quantise::quantised;

/// A file to be: metadata, then tensors.
#[derive(Clone)]
pub struct GgufFile {
    /// Version in the header.
    pub version: u32,
    /// Metadata, encoded.
    pub pairs: Vec<u8>,
    /// How many there are.
    pub n_pairs: u64,
    /// In the order that they are written.
    pub tensors: Vec<GgufTensor>,
}

/// A tensor to be written.
#[derive(Clone)]
pub struct GgufTensor {
    /// Name in the file.
    pub name: String,
    /// Outermost axis first.
    pub shape: Vec<usize>,
    /// The format's number of the type.
    pub type_id: u32,
    /// The data.
    pub bytes: Vec<u8>,
}

/// Where data begins: at multiples of this.
const ALIGNMENT: usize = 32;

impl Default for GgufFile {
    fn default() -> Self {
        Self { version: 3, pairs: Vec::new(), n_pairs: 0, tensors: Vec::new() }
    }
}

fn text(value: &str) -> Vec<u8> {
    [&(value.len() as u64).to_le_bytes()[..], value.as_bytes()].concat()
}

impl GgufFile {
    /// Adds a pair whose value is already encoded.
    pub fn raw(&mut self, key: &str, kind: u32, value: &[u8]) -> &mut Self {
        self.pairs.extend(text(key));
        self.pairs.extend(kind.to_le_bytes());
        self.pairs.extend(value);
        self.n_pairs += 1;
        self
    }

    /// Adds a number of 32 bits.
    pub fn number(&mut self, key: &str, value: usize) -> &mut Self {
        self.raw(key, 4, &(value as u32).to_le_bytes())
    }

    /// Adds a single.
    pub fn float(&mut self, key: &str, value: f32) -> &mut Self {
        self.raw(key, 6, &value.to_le_bytes())
    }

    /// Adds true or false.
    pub fn flag(&mut self, key: &str, value: bool) -> &mut Self {
        self.raw(key, 7, &[u8::from(value)])
    }

    /// Adds a text.
    pub fn text(&mut self, key: &str, value: &str) -> &mut Self {
        self.raw(key, 8, &text(value))
    }

    /// Adds a list of texts.
    pub fn texts<'a>(&mut self, key: &str, values: impl IntoIterator<Item = &'a str>) -> &mut Self {
        let values: Vec<Vec<u8>> = values.into_iter().map(text).collect();
        self.list(key, 8, values.len(), &values.concat())
    }

    /// Adds a list of signed numbers of 32 bits.
    pub fn numbers(&mut self, key: &str, values: &[i32]) -> &mut Self {
        let bytes: Vec<u8> = values.iter().flat_map(|n| n.to_le_bytes()).collect();
        self.list(key, 5, values.len(), &bytes)
    }

    fn list(&mut self, key: &str, kind: u32, len: usize, bytes: &[u8]) -> &mut Self {
        let head = [&kind.to_le_bytes()[..], &(len as u64).to_le_bytes()].concat();
        self.raw(key, 9, &[&head, bytes].concat())
    }

    /// Adds a tensor.
    pub fn tensor(&mut self, name: &str, shape: &[usize], type_id: u32, bytes: Vec<u8>) {
        let (name, shape) = (name.to_string(), shape.to_vec());
        self.tensors.push(GgufTensor { name, shape, type_id, bytes });
    }

    /// The header alone, up to where the padding before the data begins.
    pub fn header(&self) -> Vec<u8> {
        let mut out = b"GGUF".to_vec();
        out.extend(self.version.to_le_bytes());
        out.extend((self.tensors.len() as u64).to_le_bytes());
        out.extend(self.n_pairs.to_le_bytes());
        out.extend(&self.pairs);
        let mut offset = 0;
        for tensor in &self.tensors {
            out.extend(text(&tensor.name));
            out.extend((tensor.shape.len() as u32).to_le_bytes());
            tensor.shape.iter().rev().for_each(|n| out.extend((*n as u64).to_le_bytes()));
            out.extend(tensor.type_id.to_le_bytes());
            out.extend((offset as u64).to_le_bytes());
            offset += tensor.bytes.len().next_multiple_of(ALIGNMENT);
        }
        out
    }

    /// The whole file.
    pub fn bytes(&self) -> Vec<u8> {
        let mut out = self.header();
        for tensor in &self.tensors {
            out.resize(out.len().next_multiple_of(ALIGNMENT), 0);
            out.extend(&tensor.bytes);
        }
        out.resize(out.len().next_multiple_of(ALIGNMENT), 0);
        out
    }

    /// The files of a model cut into `n` shards: all metadata in the first, tensors dealt out.
    pub fn shards(&self, n: usize) -> Vec<Vec<u8>> {
        let shard = |i: usize| {
            let mut file = if i == 0 { self.clone() } else { Self::default() };
            file.tensors = self.tensors.iter().skip(i).step_by(n).cloned().collect();
            file.raw("split.no", 2, &(i as u16).to_le_bytes());
            file.raw("split.count", 2, &(n as u16).to_le_bytes());
            file.raw("split.tensors.count", 5, &(self.tensors.len() as i32).to_le_bytes());
            file.bytes()
        };
        (0..n).map(shard).collect()
    }
}
