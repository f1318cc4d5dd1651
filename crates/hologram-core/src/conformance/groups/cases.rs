//! The cases of fused groups.

use hologram_backends::DType;
use hologram_isa::Type;

use super::experts::{Experts, Route, Router};
use super::{Biased, Biases, Cache, Convert, End, GroupCase, Kind, Norms, Products};
use crate::conformance::recurrent;
use crate::ops::{AttentionOptions, AttentionPrecision, RopeStyle};

/// All cases, with weights laid out for a device.
pub(super) fn cases(layout: impl Fn(DType) -> DType) -> Vec<GroupCase> {
    let mut cases = Vec::new();
    // Weights with the conversions of their left side that are valid for this row length.
    let pairs = |k: usize| {
        let i8 = |group, floor| Convert::I8 { group, floor };
        [
            (DType::F32, Convert::None),
            (DType::F16, Convert::None),
            (DType::BF16, Convert::BF16),
            (DType::Q8_0, i8(32, 0.0)),
            (DType::Q8_0, Convert::BF16),
            (DType::Q4_0, i8(32, 0.0)),
            (DType::Q4_0, Convert::BF16),
            (DType::TQ2_0, i8(256, 0.0)),
            (DType::TQ2_0, i8(k, 1e-5)),
            (DType::F16, Convert::BF16),
        ]
    };
    let forms: [(&[usize], End); 6] = [
        (&[48, 16, 16], End::Products),
        (&[40, 40], End::Swiglu),
        (&[40, 40], End::Relu2),
        (&[0], End::Add { first: true }),
        (&[0], End::Add { first: false }),
        (&[40], End::Products),
    ];
    let mut products = |tokens, norm, k: usize, rows: &[usize], end, (weights, convert): (DType, Convert)| {
        // An operand that is added has the left side's shape.
        let rows = rows.iter().map(|m| if *m == 0 { k } else { *m }).collect();
        let weights = layout(weights);
        let kind = Kind::Products(Products { norm, convert, weights, others: weights, k, rows, end });
        cases.push(GroupCase { tokens, kind });
    };
    for (i, (rows, end)) in forms.iter().enumerate() {
        for (j, (short, long)) in pairs(256).into_iter().zip(pairs(512)).enumerate() {
            products((1, 1), (i + j) % 2 == 0, 512, rows, *end, long);
            products((1, 1), (i + j) % 2 == 1, 256, rows, *end, short);
            products((8, 5), true, 256, rows, *end, short);
        }
    }
    for pair in pairs(256) {
        products((40, 33), true, 256, &[96, 32, 32], End::Products, pair);
        products((40, 33), false, 256, &[72, 72], End::Swiglu, pair);
        products((4, 0), true, 256, &[0], End::Add { first: true }, pair);
    }
    for (tokens, i) in [((1, 1), 2), ((1, 1), 3), ((8, 5), 5), ((40, 33), 2), ((40, 33), 4), ((40, 33), 8)] {
        let pair = pairs(256)[i];
        let convert = if let Convert::I8 { floor, .. } = pair.1 { Convert::I8 { group: 32, floor } } else { pair.1 };
        products(tokens, i == 2, 256, &[64, 64], End::SwigluConverted(convert), pair);
    }
    // Rows and tokens of several tiles of any kernel.
    for i in [2, 3, 4, 8, 9] {
        products((1, 1), true, 2048, &[128, 64, 64], End::Products, pairs(2048)[i]);
        products((40, 33), false, 256, &[0], End::Add { first: true }, pairs(256)[i]);
        products((160, 130), true, 256, &[64, 64], End::Relu2, pairs(256)[i]);
    }
    // One token with rows for several tiles of each of many workgroups.
    for i in [3, 5, 8] {
        products((1, 1), true, 512, &[2300, 40, 41], End::Products, pairs(512)[i]);
        products((1, 1), true, 512, &[1300, 1300], End::Relu2, pairs(512)[i]);
    }
    // Sweeps over types and sizes. Where weights stay in blocks, one kernel reads rows of any type, and the sizes of
    // tiles mean nothing: such a device runs every third case of a sweep, of each type others.
    let in_planes = DType::BLOCKS.into_iter().any(|format| layout(format) != format);
    let taken = |weights: usize, size: usize| in_planes || (weights + size).is_multiple_of(3);
    let packed = || DType::BLOCKS.into_iter().filter(|f| f.in_planes().packed().is_some());
    let codes = Convert::I8 { group: 32, floor: 0.0 };
    let swept = [
        // A few tokens' codes, with rows for tiles of several matrices.
        ((8, 7), false, 512, &[72, 24, 40][..], End::Products, codes),
        ((8, 8), true, 512, &[72, 72], End::Swiglu, codes),
        ((6, 3), false, 256, &[0], End::Add { first: true }, codes),
        ((8, 6), false, 9216, &[40], End::Products, codes),
        ((16, 15), false, 512, &[72, 24, 40], End::Products, codes),
        ((16, 13), true, 512, &[72, 72], End::Swiglu, codes),
        ((16, 11), false, 9216, &[40], End::Products, codes),
        // Many tokens with weights that kernels widen themselves: parts of tiles, rows that workgroups share, an odd
        // number of records.
        ((30, 27), false, 512, &[72, 40], End::Products, Convert::BF16),
        ((64, 50), true, 256, &[40, 40], End::Swiglu, Convert::BF16),
        ((32, 29), false, 2304, &[40], End::Products, Convert::BF16),
        ((200, 170), false, 256, &[72], End::Products, Convert::BF16),
    ];
    for (i, weights) in [DType::Q8_0, DType::Q4_0].into_iter().chain(packed()).enumerate() {
        for (j, (tokens, norm, k, rows, end, convert)) in swept.into_iter().enumerate() {
            // Codes are multiplied with codes.
            if taken(i, j) && !(weights.has_float_codes() && convert == codes) {
                products(tokens, norm, k, rows, end, (weights, convert));
            }
        }
    }
    // Types that devices may lay out in planes of codes, factors and records.
    let swept = [
        ((1, 1), true, 2048, &[48, 16, 16][..], End::Products, codes),
        ((1, 1), true, 512, &[40, 40], End::Swiglu, codes),
        ((4, 3), false, 512, &[0], End::Add { first: true }, codes),
        ((1, 1), false, 8192, &[40], End::Products, codes),
        ((40, 33), true, 256, &[64, 64], End::Swiglu, Convert::BF16),
        ((40, 33), false, 256, &[0], End::Add { first: true }, Convert::BF16),
    ];
    for (i, weights) in packed().enumerate() {
        for (j, (tokens, norm, k, rows, end, convert)) in swept.into_iter().enumerate() {
            if taken(i, j) {
                let convert = if weights.has_float_codes() && convert == codes { Convert::None } else { convert };
                products(tokens, norm, k, rows, end, (weights, convert));
            }
        }
    }
    // Norms and gates of rows that are too long for a workgroup to keep.
    for weights in [DType::Q4_K, DType::IQ4_XS] {
        products((1, 1), true, 5120, &[48, 16], End::Products, (weights, codes));
        products((1, 1), true, 5120, &[40, 40], End::Swiglu, (weights, codes));
    }
    // Rows of which kernels that take 256 elements at a time have a part.
    for (weights, k) in [(DType::MXFP4, 1120), (DType::IQ4_NL, 96), (DType::Q5_0, 160), (DType::NVFP4, 2880)] {
        products((1, 1), true, k, &[37], End::Products, (weights, codes));
    }
    // The same where devices multiply codes with f32.
    let swept = [
        ((1, 1), true, 1280, &[24, 9, 10][..], End::Products),
        ((4, 3), true, 512, &[21, 21], End::Swiglu),
        ((8, 7), false, 256, &[0], End::Add { first: true }),
    ];
    for weights in [DType::Q8_0, DType::Q4_0].into_iter().chain(packed()).filter(|_| in_planes) {
        for (tokens, norm, k, rows, end) in swept {
            products(tokens, norm, k, rows, end, (weights, Convert::None));
        }
    }
    for (tokens, pair) in [((1, 1), pairs(512)[2]), ((5, 3), pairs(512)[3]), ((5, 3), pairs(512)[8])] {
        products(tokens, true, 512, &[], End::Converted, pair);
    }
    for (n, k) in [(60, 4), (128, 8), (200, 32), (512, 10)] {
        for softmax_first in [true, false] {
            for tokens in [(1, 1), (20, 17)] {
                cases.push(GroupCase { tokens, kind: Kind::Route(Route { n, k, softmax_first }) });
            }
        }
    }
    for (tokens, widths) in [((1, 1), vec![4096, 512, 512]), ((9, 7), vec![33, 20])] {
        cases.push(GroupCase { tokens, kind: Kind::Biases(Biases(widths)) });
    }
    for (tokens, width) in [((1, 1), 3072), ((9, 7), 33), ((70, 64), 768)] {
        for (gelu, convert) in
            [(true, Convert::None), (true, Convert::BF16), (false, Convert::None), (false, Convert::BF16)]
        {
            cases.push(GroupCase { tokens, kind: Kind::Biased(Biased { width, gelu, convert }) });
        }
    }
    for (tokens, heads, d) in
        [((1, 1), (32, 4), 128), ((5, 3), (3, 1), 256), ((20, 17), (4, 4), 1100), ((130, 127), (34, 7), 64)]
    {
        cases.push(GroupCase { tokens, kind: Kind::Norms(Norms { heads, d }) });
    }
    for (tokens, width, n, k) in [((1, 1), 2048, 128, 8), ((8, 5), 96, 33, 4), ((3, 3), 2880, 300, 6)] {
        for (i, convert) in [codes, Convert::BF16, Convert::None].into_iter().enumerate() {
            let (biased, softmax_first, normed) = (i == 0, i == 1, i != 1);
            let kind = Kind::Router(Router { convert, width, n, k, biased, softmax_first, normed });
            cases.push(GroupCase { tokens, kind });
        }
    }
    // A token, a few of which each has matrices of its own, and many with tiles of a few slots and of many.
    let plain = [DType::F32, DType::F16, DType::BF16, DType::Q8_0, DType::Q4_0];
    for (i, weights) in plain.into_iter().chain(packed()).enumerate() {
        let (few, many) = match weights {
            DType::F32 => (Convert::None, Convert::None),
            w if w == DType::F16 || w.has_float_codes() => (Convert::None, Convert::BF16),
            DType::BF16 => (Convert::BF16, Convert::BF16),
            _ => (codes, Convert::BF16),
        };
        let swept = [
            ((1, 1), 6, 3, 256, 70, End::ClampedSwiglu, few),
            ((40, 33), 3, 2, 256, 140, End::ClampedSwiglu, many),
            ((1, 1), 6, 3, 512, 70, End::Swiglu, few),
            ((1, 1), 6, 5, 256, 45, End::Products, few),
            ((1, 1), 6, 3, 256, 48, End::Add { first: true }, few),
            ((8, 5), 16, 2, 256, 40, End::Relu2, few),
            ((8, 6), 16, 9, 256, 33, End::Add { first: false }, few),
            ((10, 9), 3, 2, 256, 300, End::Swiglu, many),
            ((40, 33), 3, 2, 512, 140, End::Relu2, many),
            ((40, 33), 3, 2, 256, 52, End::Products, many),
            ((130, 127), 2, 2, 256, 40, End::Swiglu, many),
        ];
        for (j, (tokens, experts, slots, k, m, end, convert)) in swept.into_iter().enumerate() {
            if taken(i, j) {
                let weights = layout(weights);
                let biased = end == End::ClampedSwiglu || matches!(end, End::Add { first: true });
                let kind = Kind::Experts(Experts { convert, weights, experts, slots, k, m, end, biased });
                cases.push(GroupCase { tokens, kind });
            }
        }
    }
    // Experts' rows of which kernels that take 256 elements at a time have a part, and many times as many.
    for (weights, k) in [(DType::MXFP4, 2880), (DType::IQ4_NL, 1120), (DType::NVFP4, 192), (DType::IQ3_S_N, 4352)] {
        for end in [End::ClampedSwiglu, End::Add { first: true }] {
            let weights = layout(weights);
            let experts =
                Experts { convert: codes, weights, experts: 4, slots: 2, k, m: 52, end, biased: k % 256 != 0 };
            cases.push(GroupCase { tokens: (2, 1), kind: Kind::Experts(experts) });
        }
    }
    for (style, kv) in [(RopeStyle::Adjacent, Type::F32), (RopeStyle::HalfSplit, Type::F16)] {
        for attention in [None, Some(AttentionPrecision::F32.into())] {
            let mut cache = |tokens, heads, d, first, each| {
                let (sinks, bf16, norms) = (false, false, false);
                let kind = Kind::Cache(Cache { attention, style, kv, heads, d, first, each, sinks, bf16, norms });
                cases.push(GroupCase { tokens, kind });
            };
            cache((1, 1), (4, 1), 64, 0, None);
            cache((1, 1), (8, 2), 128, 201, None);
            cache((1, 1), (3, 3), 80, 31, None);
            cache((1, 1), (8, 2), 64, 400, None);
            cache((4, 3), (6, 2), 64, 40, Some(1));
            cache((40, 35), (4, 2), 64, 30, None);
        }
    }
    // Windows that end within a tile of any kernel.
    for (kv, heads, d, window) in [
        (Type::F32, (8, 2), 64, 1),
        (Type::F32, (4, 1), 128, 70),
        (Type::F16, (8, 2), 128, 33),
        (Type::F16, (8, 1), 64, 150),
    ] {
        let attention = Some(AttentionOptions {
            precision: AttentionPrecision::F32,
            window: Some(window),
            ..AttentionOptions::default()
        });
        // With the longer windows a cap and sinks as well.
        for sinks in [false, true].into_iter().filter(|sinks| !sinks || window > 100 || d == 128) {
            let attention = attention.map(|options| AttentionOptions { cap: sinks.then_some(2.0), ..options });
            for (tokens, first, each) in [((1, 1), 201, None), ((4, 3), 40, Some(1)), ((40, 35), 130, None)] {
                let (style, bf16, norms) = (RopeStyle::HalfSplit, false, false);
                let kind = Kind::Cache(Cache { attention, style, kv, heads, d, first, each, sinks, bf16, norms });
                cases.push(GroupCase { tokens, kind });
            }
        }
    }
    // Many tokens that store rows which others of their sequence read, within a tile of a kernel and across several.
    for (style, tokens, heads, d, first, each) in [
        (RopeStyle::HalfSplit, (1, 1), (8, 2), 128, 300, 1),
        (RopeStyle::Adjacent, (5, 4), (4, 1), 64, 60, 2),
        (RopeStyle::HalfSplit, (20, 17), (8, 2), 128, 100, 1),
        (RopeStyle::HalfSplit, (32, 32), (4, 1), 64, 50, 1),
        (RopeStyle::Adjacent, (32, 31), (16, 2), 128, 120, 5),
        (RopeStyle::HalfSplit, (30, 30), (10, 1), 128, 3, 24),
        (RopeStyle::Adjacent, (32, 32), (4, 2), 64, 7, 32),
    ] {
        for window in [None, Some(33)] {
            let precision = AttentionPrecision::F32;
            let attention = Some(AttentionOptions { precision, window, ..AttentionOptions::default() });
            let (each, kv, sinks, bf16) = (Some(each), Type::F16, false, window.is_none());
            for norms in [false, true] {
                let kind = Kind::Cache(Cache { attention, style, kv, heads, d, first, each, sinks, bf16, norms });
                cases.push(GroupCase { tokens, kind });
            }
        }
    }
    // Query heads of a key/value head that do not divide the rows of a kernel's workgroup, for several workgroups.
    let attention = Some(AttentionPrecision::F32.into());
    let (style, kv) = (RopeStyle::HalfSplit, Type::F16);
    let cache = Cache {
        attention,
        style,
        kv,
        heads: (7, 1),
        d: 64,
        first: 0,
        each: None,
        sinks: false,
        bf16: false,
        norms: false,
    };
    cases.push(GroupCase { tokens: (130, 127), kind: Kind::Cache(cache) });
    cases.extend(recurrent::cases().map(|(tokens, layer)| GroupCase { tokens, kind: Kind::Recurrent(layer) }));
    let attention = Some(AttentionPrecision::BF16.into());
    let cache = Cache {
        attention,
        style: RopeStyle::Adjacent,
        kv: Type::F32,
        heads: (8, 2),
        d: 128,
        first: 17,
        each: None,
        sinks: false,
        bf16: false,
        norms: false,
    };
    cases.push(GroupCase { tokens: (96, 70), kind: Kind::Cache(cache) });
    // As many products as a group has; weights of two formats, with rows for several tiles of a workgroup.
    for (tokens, norm, k, rows, [weights, others], convert) in [
        ((1, 1), true, 512, &[48, 24, 8, 9][..], [DType::BF16; 2], Convert::BF16),
        ((5, 3), true, 256, &[48, 24, 8, 9], [DType::F16; 2], Convert::None),
        ((1, 1), true, 512, &[48, 24, 8, 9], [DType::Q8_0; 2], codes),
        ((1, 1), true, 5120, &[300, 200, 24, 9], [DType::Q5_K, DType::Q4_K], codes),
        ((1, 1), true, 5120, &[72, 24, 40], [DType::Q4_K, DType::Q6_K], codes),
        ((1, 1), true, 512, &[2900, 2900, 40], [DType::Q4_K, DType::Q6_K], codes),
        ((1, 1), false, 1024, &[40, 24, 9, 10], [DType::Q6_K, DType::Q5_K], codes),
        ((1, 0), true, 512, &[40, 24, 9, 10], [DType::Q5_K, DType::Q4_K], codes),
        ((4, 3), true, 512, &[40, 24, 9, 10], [DType::Q5_K, DType::Q4_K], codes),
        ((1, 1), true, 512, &[40, 24, 9, 10], [DType::Q5_K, DType::Q4_K], Convert::None),
        ((40, 33), true, 256, &[40, 24, 8, 16], [DType::Q5_K, DType::Q4_K], Convert::BF16),
    ] {
        let (weights, others, rows) = (layout(weights), layout(others), rows.to_vec());
        let kind = Kind::Products(Products { norm, convert, weights, others, k, rows, end: End::Products });
        cases.push(GroupCase { tokens, kind });
    }
    cases
}
