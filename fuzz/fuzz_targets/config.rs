//! Fuzzes `config.json`: no panic, and an accepted model has tensors of sane shapes.
//!
//! Run with `bash tools/fuzz.sh 60 config`; the
//! seeds are small configurations of every family, and new finds go to the corpus.
#![no_main]

use libfuzzer_sys::fuzz_target;
use millstream::families::{ConfigReader, blueprint};
use millstream_stages::parts::{part_shape, resident_parts};

fuzz_target!(|text: &[u8]| {
    let Ok(config) = ConfigReader::parse("config.json", text) else { return };
    for has_tensors in [true, false] {
        let Ok(blueprint) = blueprint(&config, &|_| has_tensors) else { continue };
        let spec = &blueprint.spec;
        assert!([1, 2, 4, 8].contains(&spec.slices));
        for (layer, part) in resident_parts(spec) {
            let [rows, cols] = part_shape(spec, layer, part).expect("every part has a shape");
            assert!(rows > 0 && cols > 0 && rows.checked_mul(cols).is_some_and(|n| n <= 1 << 34));
            assert!(!(blueprint.tensor_name)(layer, part).is_empty());
        }
        for moe in spec.layers.iter().filter_map(|layer| layer.moe()) {
            assert!(0 < moe.top_k && moe.top_k <= moe.experts);
            assert!(moe.experts % moe.gate.groups == 0);
        }
        assert!(blueprint.tokens.eos.iter().all(|&id| (id as usize) < spec.vocabulary));
    }
});
