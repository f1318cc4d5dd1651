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
    /// AVX-512 VBMI and GFNI (any order of bytes, products with matrices of bits), with `vnni`.
    pub gfni: bool,
    /// AMX tiles of BF16, with all others.
    pub amx: bool,
    /// Blocks of whole bytes are read faster in one stream that the hardware foresees than in two that are asked for ahead: taken to be so of
    /// AMD's processors, measured on Zen 4.
    pub one_stream: bool,
    /// Instructions on 512 bits take two steps of 256: Zen 4.
    pub half_vectors: bool,
}

impl Features {
    /// No extension: the plain path.
    pub const PLAIN: Features = Features {
        avx2: false,
        avx512: false,
        vnni: false,
        bf16: false,
        gfni: false,
        amx: false,
        one_stream: false,
        half_vectors: false,
    };

    /// What this processor has. It is asked once: a virtual machine takes a microsecond or more for each of its answers.
    pub fn detect() -> Features {
        static FOUND: std::sync::OnceLock<Features> = std::sync::OnceLock::new();
        *FOUND.get_or_init(Features::ask)
    }

    #[cfg(target_arch = "x86_64")]
    fn ask() -> Features {
        let avx2 =
            is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma") && is_x86_feature_detected!("f16c");
        let avx512 = avx2
            && is_x86_feature_detected!("avx512f")
            && is_x86_feature_detected!("avx512bw")
            && is_x86_feature_detected!("avx512dq")
            && is_x86_feature_detected!("avx512vl");
        let vnni = avx512 && is_x86_feature_detected!("avx512vnni");
        let bf16 = avx512 && is_x86_feature_detected!("avx512bf16");
        let gfni = vnni && is_x86_feature_detected!("avx512vbmi") && is_x86_feature_detected!("gfni");
        let vendor = std::arch::x86_64::__cpuid(0);
        let one_stream = [vendor.ebx, vendor.edx, vendor.ecx].map(u32::to_le_bytes).as_flattened() == b"AuthenticAMD";
        // Bits 8 to 11 are a family of at most 15, bits 20 to 27 what it lies above that. Zen 3 is of family 0x19 too, and has no AVX-512.
        let version = std::arch::x86_64::__cpuid(1).eax;
        let half_vectors = one_stream && (version >> 8 & 0xf) + (version >> 20 & 0xff) == 0x19;
        let amx = vnni && bf16 && tiles_permitted();
        Features { avx2, avx512, vnni, bf16, gfni, amx, one_stream, half_vectors }
    }

    #[cfg(not(target_arch = "x86_64"))]
    fn ask() -> Features {
        Features::PLAIN
    }

    /// What both sets have.
    pub fn and(self, other: Features) -> Features {
        Features {
            avx2: self.avx2 && other.avx2,
            avx512: self.avx512 && other.avx512,
            vnni: self.vnni && other.vnni,
            bf16: self.bf16 && other.bf16,
            gfni: self.gfni && other.gfni,
            amx: self.amx && other.amx,
            one_stream: self.one_stream && other.one_stream,
            half_vectors: self.half_vectors && other.half_vectors,
        }
    }

    /// The names shown by `hologram devices`.
    pub fn names(self) -> Vec<&'static str> {
        [
            (self.avx2, "avx2"),
            (self.avx512, "avx512"),
            (self.vnni, "avx512vnni"),
            (self.bf16, "avx512bf16"),
            (self.gfni, "gfni"),
            (self.amx, "amx"),
        ]
        .into_iter()
        .filter_map(|(has, name)| has.then_some(name))
        .collect()
    }
}

/// Whether the processor has AMX tiles of BF16 and the system lets this process use them. Linux gives their registers to a process
/// that asks; elsewhere they are left alone.
#[cfg(target_arch = "x86_64")]
fn tiles_permitted() -> bool {
    use std::arch::x86_64::{__cpuid, __cpuid_count};
    // Leaf 7: EDX bit 22 AMX-BF16, bit 24 AMX-TILE.
    let both = 1 << 22 | 1 << 24;
    __cpuid(0).eax >= 7 && __cpuid_count(7, 0).edx & both == both && request_tiles()
}

/// Asks Linux for the tile registers: `arch_prctl(ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA)`.
#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
fn request_tiles() -> bool {
    const ARCH_PRCTL: i64 = 158;
    const ARCH_REQ_XCOMP_PERM: u64 = 0x1023;
    const XTILEDATA: u64 = 18;
    let mut result = ARCH_PRCTL;
    // SAFETY: the system call reads and writes no memory of this process.
    unsafe {
        std::arch::asm!(
            "syscall",
            inout("rax") result,
            in("rdi") ARCH_REQ_XCOMP_PERM,
            in("rsi") XTILEDATA,
            out("rcx") _,
            out("r11") _,
            options(nostack),
        );
    }
    result == 0
}

/// No other system is asked.
#[cfg(all(target_arch = "x86_64", not(target_os = "linux")))]
fn request_tiles() -> bool {
    false
}
