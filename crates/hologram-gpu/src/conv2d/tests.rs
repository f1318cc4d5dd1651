use super::*;

const H200: Target = Target::nvidia(90, 132, 227 * 1024);

fn spec(format: DType, images: Extent, image: [usize; 3], kernel: [usize; 4], stride: u32, padding: u32) -> KernelSpec {
    let ([c, h, w], [o, depth, kh, kw]) = (image, kernel);
    let size = |n: usize, k: usize| (n + 2 * padding as usize - k) / stride as usize + 1;
    let tensor = |first: Extent, rest: [usize; 3]| TensorSpec {
        format,
        shape: [first].into_iter().chain(rest.map(Extent::Fixed)).collect(),
    };
    KernelSpec {
        op: Operation::Conv2d {
            stride: [stride; 2],
            padding: [padding; 2],
            dilation: [1; 2],
            groups: (c / depth) as u32,
        },
        inputs: vec![tensor(images, image), tensor(Extent::Fixed(o), [depth, kh, kw])],
        output: tensor(images, [o, size(h, kh), size(w, kw)]),
        in_place: None,
    }
}

fn launches(spec: &KernelSpec, target: Target) -> Vec<KernelLaunch> {
    let launch = |part| match part {
        Part::Kernel(launch) => launch,
        Part::Blas(call) => panic!("{call:?}"),
    };
    crate::find(spec, target).map_or_else(Vec::new, |kernel| kernel.parts.into_iter().map(launch).collect())
}

/// Which kernels serve which convolution.
#[test]
fn forms() {
    let images = Extent::Fixed(32);
    for (format, image, kernel, stride, padding, want) in [
        (DType::F16, [64, 56, 56], [64, 64, 3, 3], 1, 1, &["conv_prepare", "conv_windows_64_f16"][..]),
        (DType::F16, [64, 56, 56], [256, 64, 1, 1], 1, 0, &["conv_planes_128_f16"]),
        (DType::BF16, [512, 14, 14], [1024, 512, 1, 1], 1, 0, &["conv_halves_128_bf16"]),
        // Pixels are not at multiples of 8 bytes, channels are no chunks, or only some pixels are read.
        (DType::F16, [64, 31, 31], [256, 64, 1, 1], 1, 0, &["conv_prepare", "conv_windows_128_f16"]),
        (DType::F16, [60, 56, 56], [256, 60, 1, 1], 1, 0, &["conv_prepare", "conv_windows_128_f16"]),
        (DType::F16, [256, 56, 56], [512, 256, 1, 1], 2, 0, &["conv_prepare", "conv_windows_128_f16"]),
        // Too few tiles.
        (DType::F16, [512, 7, 7], [512, 512, 3, 3], 1, 1, &["conv_prepare", "conv_windows_128_f16", "conv_join_f16"]),
        (DType::F32, [64, 56, 56], [128, 64, 3, 3], 1, 1, &["conv_floats_128"]),
        (DType::BF16, [64, 56, 56], [64, 1, 3, 3], 1, 1, &["conv_elements_bf16"]),
        (DType::F64, [64, 56, 56], [64, 64, 3, 3], 1, 1, &[]),
    ] {
        let spec = spec(format, images, image, kernel, stride, padding);
        let found: Vec<String> = launches(&spec, H200).into_iter().map(|l| l.entry).collect();
        assert_eq!(found, want, "{} {image:?} {kernel:?}", format.name());
    }
    let old = Target::nvidia(75, 40, 64 * 1024);
    assert!(launches(&spec(DType::F16, images, [64, 56, 56], [64, 64, 3, 3], 1, 1), old).is_empty());
}

/// Images of a run-time number, with what precedes the product: only the pixels that kernels of one element read.
#[test]
fn pixels_that_are_read() {
    let images = Extent::step(1, 4);
    let launches = launches(&spec(DType::F16, images, [20, 9, 8], [70, 20, 1, 1], 2, 0), H200);
    let [prepare, product, ..] = launches.as_slice() else { panic!("{launches:?}") };
    let prepare = prepare.filled::<ConvPrepare>();
    assert_eq!((prepare.pixels, prepare.across, prepare.step_y, prepare.chunks, prepare.turned), (20, 4, 2, 3, 4));
    assert_eq!((prepare.images.slot, prepare.images.most), (1, 4));
    let product = product.filled::<Convolve>();
    assert_eq!((product.high, product.wide, product.stride_y, product.pitch, product.all), (5, 4, 1, 24, 3));
}

/// The multiplication that kernels divide by.
#[test]
fn division_by_multiplication() {
    for d in (1..200).chain([12_544, 65_521, (1 << 31) - 1]) {
        let by = u64::from(inverse(d).unwrap_or(0));
        for n in (0..500).chain((1..60).map(|i| i * d).filter(|n| *n < 1 << 31)).chain([(1 << 31) - 1]) {
            let q = if d == 1 { n } else { ((n as u64 * by) >> 32) as usize };
            assert_eq!(q - usize::from(q * d > n), n / d, "{n} / {d}");
        }
    }
}
