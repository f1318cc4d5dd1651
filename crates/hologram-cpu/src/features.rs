//! The instructions that the processor has, detected once when the device is opened.

use std::ops::Deref;

/// Levels of vector instructions that select kernels, lowest first; a limit for
/// [`CpuOptions::max_isa`](super::CpuOptions::max_isa).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum InstructionSet {
    /// The instructions that every processor of the architecture has.
    Plain,
    /// AVX2, FMA and F16C.
    Avx2,
    /// AVX-512 F, BW, DQ, VL, without its extensions for dot products and without AMX.
    Avx512,
}

/// Instruction sets of this processor. A value is evidence that the processor has the named sets, so kernels may
/// execute them: it comes from [`Features::detect`] and is only ever reduced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Features {
    flags: Flags,
}

/// The flags of [`Features`]; by themselves they are evidence of nothing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Flags {
    /// AVX2, FMA and F16C.
    pub(crate) avx2: bool,
    /// AVX-512 F, BW, DQ, VL, with `avx2`.
    pub(crate) avx512: bool,
    /// AVX-512 VNNI (8-bit dot products), with `avx512`.
    pub(crate) vnni: bool,
    /// AVX-512 BF16 dot products, with `avx512`.
    pub(crate) bf16: bool,
    /// AVX-512 VBMI and GFNI (byte permutations, products with bit matrices), with `vnni`.
    pub(crate) gfni: bool,
    /// AMX tiles of BF16, with `vnni` and `bf16`.
    pub(crate) amx: bool,
    /// Blocks of whole bytes are read faster in one stream that the hardware prefetches than in two with software
    /// prefetch: assumed for AMD's processors, measured on Zen 4.
    pub(crate) one_stream: bool,
    /// Instructions on 512 bits take two steps of 256: Zen 4.
    pub(crate) half_vectors: bool,
}

impl Deref for Features {
    type Target = Flags;

    fn deref(&self) -> &Flags {
        &self.flags
    }
}

impl Features {
    /// No extension: the plain path.
    #[cfg(any(feature = "testing", not(target_arch = "x86_64"), miri))]
    pub(crate) const PLAIN: Features = Features {
        flags: Flags {
            avx2: false,
            avx512: false,
            vnni: false,
            bf16: false,
            gfni: false,
            amx: false,
            one_stream: false,
            half_vectors: false,
        },
    };

    /// The processor's features. Detected once: a virtual machine takes a microsecond or more per CPUID query.
    pub(crate) fn detect() -> Features {
        static FOUND: std::sync::OnceLock<Features> = std::sync::OnceLock::new();
        *FOUND.get_or_init(Features::probe)
    }

    #[cfg(all(target_arch = "x86_64", not(miri)))]
    fn probe() -> Features {
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
        // Family: bits 8 to 11, at most 15, plus bits 20 to 27. Zen 3 is of family 0x19 too, but has no AVX-512.
        let version = std::arch::x86_64::__cpuid(1).eax;
        let half_vectors = one_stream && (version >> 8 & 0xf) + (version >> 20 & 0xff) == 0x19;
        let amx = vnni && bf16 && tiles_permitted();
        Features { flags: Flags { avx2, avx512, vnni, bf16, gfni, amx, one_stream, half_vectors } }
    }

    // Miri runs no vector instructions.
    #[cfg(any(not(target_arch = "x86_64"), miri))]
    fn probe() -> Features {
        Features::PLAIN
    }

    /// The subset that belongs to an instruction set.
    pub(crate) fn up_to(self, most: InstructionSet) -> Features {
        let flags = Flags {
            avx2: self.avx2 && most >= InstructionSet::Avx2,
            avx512: self.avx512 && most >= InstructionSet::Avx512,
            ..Flags::default()
        };
        Features { flags }
    }

    /// Without GFNI and with `one_stream` inverted, so that tests cover both paths of a processor.
    #[cfg(feature = "testing")]
    pub(crate) fn with_other_streams(self) -> Features {
        Features { flags: Flags { one_stream: !self.one_stream, gfni: false, ..self.flags } }
    }

    /// The names shown by `hologram devices`.
    pub(crate) fn names(self) -> Vec<&'static str> {
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

/// Whether the processor has AMX tiles of BF16 and the system lets this process use them. Linux grants their registers
/// on request; on other systems they are not used.
#[cfg(all(target_arch = "x86_64", not(miri)))]
fn tiles_permitted() -> bool {
    use std::arch::x86_64::{__cpuid, __cpuid_count};
    // Leaf 7: EDX bit 22 AMX-BF16, bit 24 AMX-TILE.
    let both = 1 << 22 | 1 << 24;
    __cpuid(0).eax >= 7 && __cpuid_count(7, 0).edx & both == both && request_tiles()
}

/// Requests the tile registers from Linux: `arch_prctl(ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA)`.
#[cfg(all(target_arch = "x86_64", target_os = "linux", not(miri)))]
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

/// Requests are made on Linux only.
#[cfg(all(target_arch = "x86_64", not(target_os = "linux"), not(miri)))]
fn request_tiles() -> bool {
    false
}

#[cfg(feature = "testing")]
pub(crate) mod tests {
    use super::*;

    pub(crate) fn a_limit_only_takes_away() {
        let all = Features::detect();
        assert_eq!(all.up_to(InstructionSet::Plain), Features::PLAIN);
        assert_eq!(Features::PLAIN.up_to(InstructionSet::Avx512), Features::PLAIN);
        for most in [InstructionSet::Plain, InstructionSet::Avx2, InstructionSet::Avx512] {
            let some = all.up_to(most);
            assert!(some.names().iter().all(|name| all.names().contains(name)), "{most:?}");
            assert_eq!(some.up_to(most), some);
            assert_eq!(some.avx2, all.avx2 && most >= InstructionSet::Avx2);
            assert_eq!(some.avx512, all.avx512 && most >= InstructionSet::Avx512);
            assert!(!some.vnni && !some.bf16 && !some.gfni && !some.amx);
        }
    }
}
