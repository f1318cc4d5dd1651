//! Kernels that share scratch memory.

use hologram_core::{CompileOptions, DType, Executor, Graph, Tensor};
use hologram_isa::Type;
use metal_double as _;

const KEYS: usize = 320;
const BLOCK: usize = 32;

/// Attention of one token over many positions leaves partial results in the scratch memory of its list, for a second
/// launch. Two of them have nothing else in common: between the second launch of one and the first of the other stands
/// a barrier. (The double runs launches without a barrier between them in both orders.)
#[test]
fn launches_that_share_scratch_memory_are_in_order() {
    let executor = Executor::open("metal", None).unwrap();
    let numbers = |shape: &[usize], seed: usize| {
        let len: usize = shape.iter().product();
        let bytes: Vec<u8> =
            (0..len).flat_map(|i| (((i * 7919 + seed * 104_729) % 2003) as f32 / 1000.0 - 1.0).to_le_bytes()).collect();
        Tensor::from_bytes(&executor, DType::F32, shape, &bytes).unwrap()
    };
    let indices = |shape: &[usize], values: &[u32]| {
        let bytes: Vec<u8> = values.iter().flat_map(|v| v.to_le_bytes()).collect();
        Tensor::from_bytes(&executor, DType::Plain(Type::U32), shape, &bytes).unwrap()
    };
    let run = |seeds: &[usize]| -> Vec<Vec<f32>> {
        let mut graph = Graph::new();
        let blocks: Vec<u32> = (0..(KEYS / BLOCK) as u32).collect();
        for seed in seeds {
            let cache = [KEYS / BLOCK, 1, BLOCK, 64];
            let q = graph.constant(&numbers(&[1, 2, 64], *seed)).unwrap();
            let k = graph.constant(&numbers(&cache, seed + 10)).unwrap();
            let v = graph.constant(&numbers(&cache, seed + 20)).unwrap();
            let position = graph.constant(&indices(&[1], &[KEYS as u32 - 1])).unwrap();
            let sequence = graph.constant(&indices(&[1], &[0])).unwrap();
            let table = graph.constant(&indices(&[1, blocks.len()], &blocks)).unwrap();
            let out = graph.attention(q, k, v, position, sequence, table, 0.125).unwrap();
            graph.output(&format!("out{seed}"), out).unwrap();
        }
        let mut plan = graph.compile_with(&executor, &[], CompileOptions::default()).unwrap();
        assert_eq!(plan.native_launches(), seeds.len(), "native kernels");
        plan.run().unwrap();
        seeds.iter().map(|seed| plan.read(&format!("out{seed}")).unwrap()).collect()
    };
    let alone = [1, 2, 3].map(|seed| run(&[seed]).remove(0));
    assert_eq!(run(&[1, 2, 3]), alone);
}
