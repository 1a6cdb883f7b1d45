//! Fuzzes the header of safetensors files: no panic, and what is accepted keeps its promises.
//!
//! Run with `bash tools/fuzz.sh 60 header`; the
//! seeds are small valid files, and new finds go to the corpus.
#![no_main]

use libfuzzer_sys::fuzz_target;
use millstream::checkpoint::header::parse_file;
use millstream::checkpoint::stamps::STAMPS_MAX;

fuzz_target!(|file: &[u8]| {
    let Ok(header) = parse_file(file) else { return };
    assert!(header.stamps.len() <= STAMPS_MAX);
    let mut end = 0;
    for tensor in &header.tensors {
        let tensor_end = tensor.begin + tensor.bytes;
        assert!(tensor_end <= file.len() as u64, "inside the file");
        assert!(tensor.bytes == 0 || tensor.begin >= end, "no overlap");
        end = end.max(tensor_end);
        let bits = tensor.shape.elements().expect("no overflow") * tensor.dtype.bitsize() as u64;
        assert_eq!(bits, tensor.bytes * 8, "size by shape and type");
    }
});
