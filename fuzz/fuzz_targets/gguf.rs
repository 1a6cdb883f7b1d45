//! Fuzzes the header of GGUF files and what is made of it: no panic, and what is accepted keeps its
//! promises.
//!
//! Run with `bash tools/fuzz.sh 60 gguf`; the seeds are small valid files, and new finds go to the
//! corpus.
#![no_main]

use libfuzzer_sys::fuzz_target;
use millstream::checkpoint::gguf::companions::companion;
use millstream::checkpoint::gguf::parse;

fuzz_target!(|file: &[u8]| {
    let Ok(header) = parse(file, file.len() as u64) else { return };
    assert!(header.header_bytes <= file.len() as u64);
    let mut end = 0;
    for tensor in &header.tensors {
        let tensor_end = tensor.offset + tensor.bytes;
        assert!(tensor_end <= file.len() as u64, "inside the file");
        assert!(tensor.bytes == 0 || tensor.offset >= end, "no overlap");
        end = end.max(tensor_end);
        let rows: u64 = tensor.lengths[1..].iter().product();
        let row = tensor.ggml.row_bytes(tensor.lengths[0] as usize).expect("whole blocks");
        assert_eq!(rows * row as u64, tensor.bytes, "size by shape and type");
    }
    for name in ["config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json"] {
        if let Ok(Some(text)) = companion(&header, name) {
            // A tokenizer that is in the file as it is may be anything.
            let ready = header.metadata.get("tokenizer.huggingface.json").is_some();
            let json: Result<serde::de::IgnoredAny, _> = serde_json::from_slice(&text);
            assert!(json.is_ok() || ready, "{name} is JSON");
        }
    }
});
