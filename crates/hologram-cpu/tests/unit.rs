//! Runs the tests of the library's private items (`src/tests.rs`).

macro_rules! tests {
    ($($module:ident = $($path:ident)::+ { $($test:ident)+ })+) => {$(
        mod $module {
            $(#[test]
            fn $test() {
                hologram_cpu::tests::$module::$test();
            })+
        }
    )+};
}

hologram_cpu::with_tests!(tests);
