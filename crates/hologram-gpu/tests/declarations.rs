//! What `build/` parses from kernel texts, and what it rejects.

#[path = "../build/declarations.rs"]
mod declarations;
#[path = "../build/host.rs"]
mod host;
#[path = "../build/rust.rs"]
mod rust;
#[path = "../build/text.rs"]
mod text;

use std::collections::BTreeMap;

use declarations::{Declaration, both};
use host::Value;
use text::{Language, Text};

const ARGUMENTS: &str = include_str!("../kernels/shared/arguments.h");
const STREAM: &str = include_str!("../kernels/shared/stream.h");

fn read(body: &str, language: Language) -> text::Result<Text> {
    let header = |name: &str| match name {
        "arguments.h" => Some(("arguments.h".to_string(), ARGUMENTS.to_string())),
        "stream.h" => Some(("stream.h".to_string(), STREAM.to_string())),
        _ => None,
    };
    Text::read("k.k", &format!("#include \"arguments.h\"\n{body}"), language, &header)
}

fn found(body: &str, language: Language) -> Result<Vec<Declaration>, String> {
    let text = read(body, language).map_err(|e| e.to_string())?;
    declarations::declarations(&text, language).map_err(|e| e.to_string())
}

fn cuda(body: &str) -> Result<Vec<Declaration>, String> {
    found(body, Language::Cuda)
}

fn found_in_metal(body: &str) -> Vec<Declaration> {
    found(body, Language::Metal).unwrap()
}

fn entries(declaration: &Declaration) -> String {
    declaration.entries.iter().map(|(name, _)| name.as_str()).collect::<Vec<_>>().join(" ")
}

/// The most threads of a workgroup come with a kernel's name; a number that a function computes is not known.
#[test]
fn threads_are_read() {
    let body = "enum : uint { WARPS = 4, MORE };\nconstexpr uint ROWS = 16 * WARPS;\n\
                template <int W> constexpr uint of() { return 64; }\n\
                #define K(name, THREADS) KERNEL(name, THREADS, IN(0, float, x)) {}\n\
                K(a, WARPS * 32)\nK(b, 2 * (ROWS + 8))\nK(c, of<1>())\n";
    let found = cuda(body).unwrap();
    assert_eq!(found[0].entries, [("a", 128), ("b", 144), ("c", 1024)].map(|(name, n)| (name.to_string(), n)));
    assert!(
        rust::structure("image", &found[0]).contains("fn threads(&self) -> &'static [usize] { &[128, 144, 1024] }")
    );
    let metal = found_in_metal(&body.replace("WARPS * 32", "64"));
    assert_eq!(both(found, metal).unwrap_err().message, "a has other threads on Metal than on CUDA");
}

/// Kernels, macros of kernels, and macros of macros, with names that are pasted together. Kernels with the same
/// arguments are one declaration.
#[test]
fn declarations_are_found_through_macros() {
    let found = cuda(
        "template <class T> FN T of(T x) { return x; }   // KERNEL(no, 1, IN(0, float, x))\n\
         #define NORM(KERNEL_, name, T) KERNEL_(norm_##name##_##T, 256, IN(0, T, x), \\\n  COUNT(1, rows), VAL(5, uint, n)) \\\n{ y[0] = ','; }\n\
         #define BOTH(name) NORM(KERNEL, name, float) NORM(KERNEL_ALONE, name, half)\n\
         BOTH(a)\nBOTH(b)\n\
         KERNEL_SHARED(last, 64, 2, MAP(0, w), OUT(1, float, y), EXTENT(2, size), VAL(4, float, eps), FAULT(5)) {}\n",
    );
    let found = found.unwrap();
    let names: Vec<_> = found.iter().map(|d| (d.name.as_str(), d.line, entries(d))).collect();
    let of_norms = "norm_a_float norm_a_half norm_b_float norm_b_half";
    assert_eq!(names, [("NORM", 3, of_norms.to_string()), ("last", 9, "last".to_string())]);
    let parameters = |d: &Declaration| -> Vec<String> {
        let shown = |p: &declarations::Parameter| match &p.group {
            Some(g) => format!("{:?} {}.{}: {}", p.kind, g.field, g.part, g.of),
            None => format!("{:?} {}", p.kind, p.name),
        };
        d.parameters.iter().map(shown).collect()
    };
    let count =
        ["Pointer rows.step: Counted", "Uint rows.slot: Counted", "Uint rows.most: Counted", "Uint rows.per: Counted"];
    assert_eq!(parameters(&found[0]), [&["Pointer x"], &count[..], &["Uint n"]].concat());
    let last = ["Map w", "Pointer y", "Uint size.slot: Actual", "Uint size.most: Actual", "Float eps", "Fault fault"];
    assert_eq!(parameters(&found[1]), last);
}

#[test]
fn texts_that_rust_would_misread_are_refused() {
    let kernel = |arguments: &str| format!("KERNEL(k, 256, {arguments}) {{}}\n");
    for (body, line, message) in [
        (kernel("IN(0, float, x), OUT(2, float, y)"), 2, "argument y is number 1, but is called 2"),
        (kernel("IN(0, float, x), COUNT(2, rows)"), 2, "argument step is number 1, but is called 2"),
        (kernel("COUNT(0, rows), VAL(3, uint, n)"), 2, "argument n is number 4, but is called 3"),
        (kernel("IN(i, float, x)"), 2, "argument x is number 0, but is called no number"),
        (kernel("IN(0, float, x), const uint n"), 2, "const is no form of an argument"),
        (kernel("IN(0, float, x), PAIR(1, y)"), 2, "PAIR is no form of an argument"),
        (kernel("VAL(0, ulong, n)"), 2, "numbers are uint or float, not ulong"),
        (kernel("IN(0, x)"), 2, "IN does not take 2 arguments"),
        (kernel("IN(0, float, x), IN(1, float, x)"), 2, "k has two arguments x"),
        (kernel("COUNT(0, a), COUNT(4, b)"), 2, "k has two arguments step"),
        (format!("{0}{0}", kernel("IN(0, float, x)")), 3, "k is declared twice"),
        ("\nextern \"C\" __global__ void k(float *x) {}\n".into(), 3, "a kernel is declared without KERNEL"),
        ("#define K(T) extern \"C\" __global__ void k(T *x) {}\n".into(), 2, "a kernel is declared without KERNEL"),
        ("[[kernel]] void k(device float *x) {}\n".into(), 2, "a kernel is declared without KERNEL"),
        ("namespace n {\nKERNEL(k, 256, IN(0, float, x)) {}\n}\n".into(), 3, "a kernel is declared within braces"),
        ("#define A(x) A(x)\nA(1)\n".into(), 2, "A expands to itself"),
        ("#define A(x) x\n#define A(x) KERNEL(k, 1, x) {}\nA(IN(0, float, x))\n".into(), 4, "A is defined twice"),
        ("#define A(x, y)\nA(1)\n".into(), 3, "A takes 2 arguments, not 1"),
        ("#ifdef A\n".into(), 2, "a condition does not end"),
        ("#endif\n".into(), 2, "there is no condition that this belongs to"),
        ("#include \"none.h\"\n".into(), 2, "there is no none.h"),
        (
            "#include \"stream.h\"\nKERNEL(k, 1, AHEAD_RANGE(0, r), VAL(4, uint, n)) {}\n".into(),
            3,
            "k: nothing comes after what is read ahead",
        ),
    ] {
        let error = cuda(&body).expect_err(&body);
        assert!(error.starts_with(&format!("k.k:{line}: {message}")), "{body}: {error}");
    }
    let many: Vec<_> = (0..32).map(|i| format!("VAL({i}, uint, n{i})")).collect();
    assert!(cuda(&kernel(&many.join(", "))).is_ok());
    let error = found(&kernel(&many.join(", ")), Language::Metal).unwrap_err();
    assert!(error.ends_with("k has 32 arguments, and Metal takes 31"), "{error}");
}

/// Prefetch ranges exist only in CUDA; all else must be the same in both languages, except for kernels that one of them
/// lacks.
#[test]
fn both_languages_take_the_same_arguments() {
    let of = |body: &str| both(cuda(body).unwrap(), found(body, Language::Metal).unwrap());
    let ahead = "#include \"stream.h\"\n#define K(name) KERNEL(name, 1, IN(0, uchar, x), VAL(1, uint, n) AHEAD(2)) {}\nK(a)\n\
                 #ifndef __CUDACC_RTC__\nK(b)\n#endif\n";
    let found = of(ahead).unwrap();
    assert_eq!((found.len(), found[0].parameters.len(), entries(&found[0])), (1, 2 + 6 * 4, "a b".into()));
    let other = "#ifdef __CUDACC_RTC__\n#define MORE(i) , VAL(i, uint, m)\n#else\n#define MORE(i)\n#endif\n\
                 KERNEL(k, 1, VAL(0, uint, n) MORE(1)) {}\n";
    assert_eq!(of(other).unwrap_err().to_string(), "k.k:7: k has other arguments on Metal than on CUDA");
}

/// A launch names every argument: an argument added to a text is a new field, which no launch sets yet.
#[test]
fn every_argument_is_a_field() {
    let of = |arguments: &str| rust::structure("image", &cuda(&format!("KERNEL(k, 1, {arguments}) {{}}")).unwrap()[0]);
    let code = of("IN(0, float, x), COUNT(1, rows), VAL(5, uint, n), VAL(6, float, eps), FAULT(7)");
    assert!(
        code.contains("pub struct K {\npub x: Memory,\npub rows: Counted,\npub n: u32,\npub eps: f32,\n}"),
        "{code}"
    );
    let list = "vec![Arg::Memory(self.x), Arg::Memory(self.rows.step), Arg::U32(self.rows.slot), Arg::U32(self.rows.most), \
                Arg::U32(self.rows.per), Arg::U32(self.n), Arg::F32(self.eps), Arg::Memory(Memory::Fault), ]";
    assert!(code.contains(list), "{code}");
    assert!(of("VAL(0, uint, n), VAL(1, uint, more)").contains("pub n: u32,\npub more: u32,\n}"));
    let modules = rust::modules(&BTreeMap::from([("a".to_string(), code.clone())]));
    assert!(modules.contains("pub mod a {") && modules.contains(&code));
    let ranges = cuda("#include \"stream.h\"\nKERNEL(k, 1, VAL(0, uint, n) AHEAD(1)) {}").unwrap();
    let list = "vec![Arg::Memory(self.at), Arg::U32(self.total), Arg::U32(self.stride), Arg::U32(self.len), ]";
    assert!(rust::range(&ranges).is_some_and(|code| code.contains(list)));
    assert!(
        rust::structure("image", &ranges[0])
            .contains("pub n: u32,\n/// What this launch reads, for the one before it.\npub reads: [Range; 6],\n}")
    );
}

#[test]
fn what_the_host_shares_has_cudas_layout() {
    let items = |body: &str| {
        let text = read(body, Language::Cuda).map_err(|e| e.to_string())?;
        host::items(&text).map_err(|e| e.to_string())
    };
    let body = "#define MOST 0x40u\nconstexpr uint A = 3, B = (A + 1) * MOST / 2 - 1;\n\
                struct __align__(16) Part { uint a, b; const float *x[A]; float f, g; };\n\
                struct Whole { Part parts[2]; unsigned long long bars[A]; float2 v; uint rest[4]; };\n\
                static_assert(sizeof(Part) == 48, \"\");\nHOST(MOST, B, Part, Whole)\n";
    // A structure of 8 + 24 + 8 bytes would end with a gap.
    let gap = items(body).unwrap_err();
    assert_eq!(gap, "k.k:7: Part ends with a gap: Rust writes fields one after the other");
    let body = body.replace("float f, g;", "float f[4];");
    let found = items(&body).unwrap();
    assert_eq!((&found[0].value, &found[1].value), (&Value::Number(64), &Value::Number(127)));
    let [Value::Structure(part), Value::Structure(whole)] = [&found[2].value, &found[3].value] else {
        panic!("{found:?}")
    };
    assert_eq!((part.bytes, part.align, whole.bytes, whole.align), (48, 16, 96 + 24 + 8 + 16, 16));
    let code = rust::item(&found[2]);
    assert!(code.contains("pub a: u32,\npub b: u32,\npub x: [u64; 3],\npub f: [f32; 4],\n}"), "{code}");
    // Structures with types unknown to Rust give their size.
    assert!(rust::item(&found[3]).ends_with("pub const WHOLE_BYTES: usize = 144;\n"));
    for (from, to, message) in [
        ("== 48", "== 40", "Part has 48 bytes"),
        ("uint a, b;", "uint a;", "there is a gap before x"),
        ("float2 v", "float3 v", "the size of float3 is not known"),
        ("MOST / 2", "MOST << 2", "B is no number: < is not understood"),
        ("HOST(MOST", "HOST(NONE", "there is no number or structure NONE"),
        ("uint A = 3", "uint A = A", "A is defined by itself"),
    ] {
        let error = items(&body.replace(from, to)).expect_err(to);
        assert!(error.contains(message), "{error}");
    }
}

/// The input for the build of the images: see `hologram-cuda`.
#[test]
fn kernels_are_declared_to_the_build_of_images() {
    let declared = cuda("KERNEL(k, 1, IN(0, float, x), VAL(1, uint, n), VAL(2, float, e), MAP(3, m)) {}").unwrap();
    let path = std::path::PathBuf::from("a folder/k.cu");
    assert_eq!(rust::declared(&[(path, declared)]), "text a folder/k.cu\nkernel k .u64 .u32 .f32 .align\n");
}
