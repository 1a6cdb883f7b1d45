//! Writes GGUF files for tests: metadata and tensors as they are given, sound or not.

/// A value as it is written.
#[derive(Clone, Debug)]
pub enum Written {
    /// Type 4.
    U32(u32),
    /// Type 6.
    F32(f32),
    /// Type 7.
    Bool(bool),
    /// Type 8.
    Text(String),
    /// Type 9 of type 8.
    Texts(Vec<String>),
    /// Type 9 of type 5.
    I32s(Vec<i32>),
    /// Type 9 of type 6.
    F32s(Vec<f32>),
    /// A type and the bytes after it, whatever they are.
    Raw(u32, Vec<u8>),
}

/// A tensor as it is written.
#[derive(Clone, Debug)]
pub struct WrittenTensor {
    /// Its name.
    pub name: String,
    /// Lengths, innermost first.
    pub lengths: Vec<u64>,
    /// ggml's number of its type.
    pub ggml: u32,
    /// Offset in the data.
    pub offset: u64,
}

/// A file to be written.
#[derive(Clone, Debug)]
pub struct Writer {
    /// The first bytes.
    pub magic: [u8; 4],
    /// The version.
    pub version: u32,
    /// Keys and values.
    pub metadata: Vec<(String, Written)>,
    /// Tensors.
    pub tensors: Vec<WrittenTensor>,
    /// What the header says of their number, if not the truth.
    pub tensor_count: Option<u64>,
    /// What the header says of the number of keys, if not the truth.
    pub key_count: Option<u64>,
    /// Bytes of data, all zeros.
    pub data_bytes: usize,
}

impl Writer {
    /// A file with this metadata and no tensors.
    pub fn new(metadata: Vec<(&str, Written)>) -> Writer {
        let metadata = metadata.into_iter().map(|(key, value)| (key.to_owned(), value)).collect();
        Writer {
            magic: *b"GGUF",
            version: 3,
            metadata,
            tensors: vec![],
            tensor_count: None,
            key_count: None,
            data_bytes: 0,
        }
    }

    /// The file's bytes.
    pub fn bytes(&self) -> Vec<u8> {
        let mut out = self.magic.to_vec();
        out.extend(self.version.to_le_bytes());
        out.extend(self.tensor_count.unwrap_or(self.tensors.len() as u64).to_le_bytes());
        out.extend(self.key_count.unwrap_or(self.metadata.len() as u64).to_le_bytes());
        for (key, value) in &self.metadata {
            put_text(&mut out, key);
            put_value(&mut out, value);
        }
        for tensor in &self.tensors {
            put_text(&mut out, &tensor.name);
            out.extend((tensor.lengths.len() as u32).to_le_bytes());
            tensor.lengths.iter().for_each(|length| out.extend(length.to_le_bytes()));
            out.extend(tensor.ggml.to_le_bytes());
            out.extend(tensor.offset.to_le_bytes());
        }
        out.resize(out.len().next_multiple_of(32) + self.data_bytes, 0);
        out
    }
}

fn put_text(out: &mut Vec<u8>, text: &str) {
    out.extend((text.len() as u64).to_le_bytes());
    out.extend(text.as_bytes());
}

fn put_value(out: &mut Vec<u8>, value: &Written) {
    let mut list = |kind: u32, count: usize| {
        out.extend(9u32.to_le_bytes());
        out.extend(kind.to_le_bytes());
        out.extend((count as u64).to_le_bytes());
    };
    match value {
        Written::Texts(texts) => {
            list(8, texts.len());
            texts.iter().for_each(|text| put_text(out, text));
        }
        Written::I32s(values) => {
            list(5, values.len());
            values.iter().for_each(|value| out.extend(value.to_le_bytes()));
        }
        Written::F32s(values) => {
            list(6, values.len());
            values.iter().for_each(|value| out.extend(value.to_le_bytes()));
        }
        Written::U32(value) => {
            out.extend(4u32.to_le_bytes());
            out.extend(value.to_le_bytes());
        }
        Written::F32(value) => {
            out.extend(6u32.to_le_bytes());
            out.extend(value.to_le_bytes());
        }
        Written::Bool(value) => {
            out.extend(7u32.to_le_bytes());
            out.push(u8::from(*value));
        }
        Written::Text(text) => {
            out.extend(8u32.to_le_bytes());
            put_text(out, text);
        }
        Written::Raw(kind, bytes) => {
            out.extend(kind.to_le_bytes());
            out.extend(bytes);
        }
    }
}
