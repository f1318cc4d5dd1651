//! Which instructions the processor has, found once when the device is opened.

/// The instruction sets that kernels are chosen by.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Features {
    /// AVX2, FMA and F16C.
    pub avx2: bool,
    /// AVX-512 F, BW, DQ, VL.
    pub avx512: bool,
    /// AVX-512 VNNI (8-bit dot products), with `avx512`.
    pub vnni: bool,
    /// AVX-512 BF16 dot products, with `avx512`.
    pub bf16: bool,
}

impl Features {
    /// No extension: the plain path.
    pub const PLAIN: Features = Features { avx2: false, avx512: false, vnni: false, bf16: false };

    /// What this processor has.
    #[cfg(target_arch = "x86_64")]
    pub fn detect() -> Features {
        let avx2 =
            is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma") && is_x86_feature_detected!("f16c");
        let avx512 = avx2
            && is_x86_feature_detected!("avx512f")
            && is_x86_feature_detected!("avx512bw")
            && is_x86_feature_detected!("avx512dq")
            && is_x86_feature_detected!("avx512vl");
        Features {
            avx2,
            avx512,
            vnni: avx512 && is_x86_feature_detected!("avx512vnni"),
            bf16: avx512 && is_x86_feature_detected!("avx512bf16"),
        }
    }

    /// What this processor has.
    #[cfg(not(target_arch = "x86_64"))]
    pub fn detect() -> Features {
        Features::PLAIN
    }

    /// What both sets have.
    pub fn and(self, other: Features) -> Features {
        Features {
            avx2: self.avx2 && other.avx2,
            avx512: self.avx512 && other.avx512,
            vnni: self.vnni && other.vnni,
            bf16: self.bf16 && other.bf16,
        }
    }

    /// The names shown by `hologram devices`.
    pub fn names(self) -> Vec<&'static str> {
        [(self.avx2, "avx2"), (self.avx512, "avx512"), (self.vnni, "avx512vnni"), (self.bf16, "avx512bf16")]
            .into_iter()
            .filter_map(|(has, name)| has.then_some(name))
            .collect()
    }
}
