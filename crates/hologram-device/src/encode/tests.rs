//! Errors beside those of llama.cpp's quantizer on the same numbers.

use super::*;

/// Rows of 4096 numbers, about normal, one in 64 four times as large; then the importance of a row's elements.
fn numbers() -> (Vec<f32>, Vec<f32>) {
    let mut state = 1u64;
    let mut next = || {
        state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (state >> 40) as u32
    };
    let mut value = || {
        let sum: f64 = (0..4).map(|_| f64::from(next()) / 16_777_216.0 - 0.5).sum();
        (sum * 0.03 * if next() % 64 == 0 { 4.0 } else { 1.0 }) as f32
    };
    let values = (0..4 * 4096).map(|_| value()).collect();
    let importance = (0..4096).map(|_| (0.1 + f64::from(next()) / 16_777_216.0 * 2.0) as f32).collect();
    (values, importance)
}

/// Squared errors of `ggml_quantize_chunk` (ggml d99724f2, x86-64): without an importance matrix, and with one,
/// weighted by it.
const EXPECTED: [(DType, f64, f64); 15] = [
    (DType::Q4_0, 6.739932e-02, 6.638052e-02),
    (DType::Q4_1, 4.390037e-02, 3.650778e-02),
    (DType::Q5_0, 1.680483e-02, 1.660899e-02),
    (DType::Q5_1, 1.040847e-02, 8.610935e-03),
    (DType::Q8_0, 2.626511e-04, 2.840863e-04),
    (DType::Q2_K, 6.199833e-01, 5.050758e-01),
    (DType::Q3_K, 1.748285e-01, 1.720723e-01),
    (DType::Q4_K, 3.774016e-02, 3.867550e-02),
    (DType::Q5_K, 9.763682e-03, 9.855948e-03),
    (DType::Q6_K, 2.587136e-03, 2.624787e-03),
    (DType::IQ4_NL, 4.635078e-02, 4.712158e-02),
    (DType::IQ4_XS, 4.772645e-02, 4.879184e-02),
    (DType::TQ1_0, 4.680420e+00, 5.079195e+00),
    (DType::TQ2_0, 4.680420e+00, 5.079195e+00),
    (DType::MXFP4, 9.449153e-02, 1.045761e-01),
];

#[test]
fn errors_are_those_of_llama_cpp() {
    let ((values, importance), mut worse) = (numbers(), Vec::new());
    for (format, plain, weighted) in EXPECTED {
        let mut errors = [0.0f64; 2];
        for (error, importance) in errors.iter_mut().zip([None, Some(&*importance)]) {
            for row in values.chunks_exact(4096) {
                let mut bytes = vec![0; format.bytes(1, row.len()).unwrap()];
                format.encode_row(row, importance, &mut bytes).unwrap();
                let mut got = vec![0.0; row.len()];
                format.decode_row(&bytes, &mut got).unwrap();
                for (i, (x, y)) in row.iter().zip(&got).enumerate() {
                    *error += f64::from(x - y).powi(2) * importance.map_or(1.0, |w| f64::from(w[i]));
                }
            }
        }
        println!("{format}: {:.4} {:.4}", errors[0] / plain, errors[1] / weighted);
        if errors[0] > 1.02 * plain || errors[1] > 1.02 * weighted {
            worse.push(format!("{format}: {:.4} {:.4}", errors[0] / plain, errors[1] / weighted));
        }
    }
    assert!(worse.is_empty(), "{worse:?}");
}

#[test]
fn floats_of_a_byte_are_the_nearest() {
    let value = |code: u8| Values::e4m3(code);
    // All numbers, as their definition gives them.
    for code in (0..=255u8).filter(|code| code & 127 != 127) {
        let (exponent, mantissa) = (i32::from(code >> 3 & 15), f32::from(code & 7) / 8.0);
        let magnitude = if exponent == 0 { mantissa / 64.0 } else { (1.0 + mantissa) * ((exponent - 7) as f32).exp2() };
        assert_eq!(value(code), if code < 128 { magnitude } else { -magnitude }, "{code}");
        assert_eq!(Values::to_e4m3(value(code)), code);
    }
    // Between neighbours the nearest, half-way the even one, beyond the last the last.
    for code in 0..126u8 {
        let (low, high) = (value(code), value(code + 1));
        let middle = (low + high) / 2.0;
        let even = code + code % 2;
        for (v, want) in [(middle, even), (middle.next_down(), code), (middle.next_up(), code + 1)] {
            assert_eq!((Values::to_e4m3(v), Values::to_e4m3(-v)), (want, want | 128), "{v}");
        }
    }
    assert_eq!([500.0, f32::INFINITY, -1e30].map(Values::to_e4m3), [126, 126, 254]);
    // Elements of caches are the same, and have a NaN.
    assert!((0..=255u8).all(|code| code & 127 == 127 || Values::f8(code) == value(code)));
    assert!([127, 255].iter().all(|code| Values::f8(*code).is_nan()));
    assert_eq!([f32::NAN, f32::INFINITY, -0.0, 17.0].map(Values::to_f8), [127, 126, 128, 88]);
}

#[test]
fn bad_rows_are_rejected() {
    let row = |bad: f32| std::array::from_fn::<f32, 32, _>(|i| if i == 7 { bad } else { 1.0 });
    for (format, values, bytes, want) in [
        (DType::Q8_0, row(f32::NAN), 34, "element 7 is NaN"),
        (DType::Q4_0, row(f32::INFINITY), 18, "element 7 is inf"),
        (DType::Q4_0, row(1.0), 17, "do not fit 17 bytes"),
        (DType::Plain(Type::F16), row(-1e5), 64, "-100000 is too large for it"),
        (DType::Q8_0, row(1e7), 34, "10000000 is too large for it"),
        (DType::Grid(crate::GridType::IQ3_S), row(1.0), 110, "do not fit"),
    ] {
        let error = format.encode_row(&values, None, &mut vec![0; bytes]).unwrap_err().to_string();
        assert!(error.contains(want), "{error}");
    }
    // Zeros stay zeros in every format.
    for format in DType::BLOCKS.into_iter().filter(|format| format.is_encodable()) {
        let mut bytes = vec![1; format.block_bytes()];
        format.encode_row(&vec![0.0; format.block_len()], None, &mut bytes).unwrap();
        let mut got = vec![1.0; format.block_len()];
        format.decode_row(&bytes, &mut got).unwrap();
        assert!(got.iter().all(|v| *v == 0.0), "{format}");
    }
}
