//! tmp
use millstream::checkpoint::*;
use millstream_stages::weights::*;
use millstream_stages::ids::*;
#[test]
fn smoke() {
    for d in ["tiny/glm-dsa", "tiny/glm-dsa-grp-tied-f32", "tiny/glm-dsa-fp8", "nano-glm-dsa", "tiny/olmoe"] {
        let m = match ModelFiles::open(std::path::Path::new(&format!("/work/shared/models/{d}"))) { Ok(m) => m, Err(e) => { println!("{d}: {e}"); continue } };
        println!("{d}: {:?} {:?} unknown {:?} slices {} {:?}", m.blueprint.tokens, m.blueprint.quantisation, m.unknown, m.blueprint.spec.slices, m.blueprint.spec.layers[2]);
        let l = LayerId(2); println!("{}", describe::describe(&m));
        println!("{:?} {:?}", m.expert_format(l), m.expert_extents(l, ExpertId(1)));
        for (layer, part) in resident_parts(&m.blueprint.spec) { m.load(layer, part).unwrap(); }
        let g = m.load(Some(l), Part::ExpertGate(ExpertId(1))).unwrap();
        let mut st = vec![];
        for e in m.expert_extents(l, ExpertId(1)) { use std::os::unix::fs::FileExt; let mut b = vec![0; e.bytes]; m.checkpoint.files()[e.file.index()].read_exact_at(&mut b, e.offset).unwrap(); st.extend(b); }
        let n = g.rows * g.cols * if m.expert_format(l) == millstream_kernels::WeightFormat::Bf16 { 2 } else { 4 };
        let (mut a, mut b, mut c) = (vec![0u8; n], vec![0u8; n], vec![0u8; n]);
        m.unpack_expert(l, ExpertId(1), &st, ExpertParts { gate: &mut a, up: &mut b, down: &mut c });
        match (&g.data, a) { (MatrixData::F32(x), a) => assert_eq!(bytemuck::cast_slice::<f32, u8>(x), a), (MatrixData::Bf16(x), a) => assert_eq!(bytemuck::cast_slice::<u16, u8>(x), a) }
        println!("{:?}", &g.to_f32()[..4]);
    }
}
