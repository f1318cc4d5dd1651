//! Tensors as users of other libraries write them: each line of a short program, with its result.

use hologram_core::{DType, Executor, Result, Tensor, TensorAttention};

use crate::common::tested;

fn close(tensor: &Tensor, want: &[f32]) -> Result<()> {
    let got = tensor.to_vec::<f32>()?;
    let near = |(a, b): (&f32, &f32)| (a - b).abs() <= 1e-5 * b.abs().max(1.0);
    assert!(got.len() == want.len() && got.iter().zip(want).all(near), "{got:?} is not {want:?}");
    Ok(())
}

fn matrix(device: &Executor) -> Result<Tensor> {
    Tensor::from_slice(device, &[2, 3], &[1.0f32, 2.0, 3.0, 4.0, 5.0, 6.0])
}

#[test]
fn on_every_device() -> Result<()> {
    run(false)
}

#[test]
#[ignore = "needs an NVIDIA GPU, where tools/gpu/check.py runs it"]
fn on_a_gpu() -> Result<()> {
    run(true)
}

fn run(gpu: bool) -> Result<()> {
    for device in &tested(gpu) {
        let x = matrix(device)?;
        // Made of numbers and of each other.
        let (rows, flat) = (vec![vec![1.0f32, 2.0], vec![3.0, 4.0]], [1.0, 2.0, 3.0, 4.0]);
        for (tensor, shape) in [
            (Tensor::new(device, &[[1.0f32, 2.0], [3.0, 4.0]])?, &[2, 2][..]),
            (Tensor::new(device, &rows)?, &[2, 2]),
            (Tensor::new(device, &[[[1.0f32], [2.0], [3.0], [4.0]]])?, &[1, 4, 1]),
            (Tensor::new(device, &[1.0f32, 2.0, 3.0, 4.0][..])?, &[4]),
        ] {
            close(&tensor, &flat)?;
            assert_eq!(tensor.shape(), shape);
        }
        assert_eq!(Tensor::new(device, &7u32)?.shape(), [0usize; 0]);
        assert_eq!(Tensor::new(device, &[[0.0f32; 3]; 0])?.shape(), [0, 3]);
        let ragged = Tensor::new(device, &[vec![1.0f32, 2.0], vec![3.0], vec![4.0, 5.0, 6.0]]);
        assert!(ragged.unwrap_err().to_string().contains("must have one shape"));
        close(&Tensor::zeros(device, DType::F32, &[2])?, &[0.0; 2])?;
        close(&(Tensor::ones(device, DType::F32, &[2])? + x.ones_like()?.sum(1))?, &[4.0; 2])?;
        close(&Tensor::cat(&[&x, &x], -1)?.slice(0, 0, 1)?, &[1.0, 2.0, 3.0, 1.0, 2.0, 3.0])?;
        assert_eq!(Tensor::stack(&[&x, &x], 1)?.shape(), [2, 2, 3]);
        assert_eq!(Tensor::stack(&[&x, &x, &x], -1)?.shape(), [2, 3, 3]);
        // Along dimensions.
        close(&x.sum(0)?, &[5.0, 7.0, 9.0])?;
        close(&x.mean(-1)?, &[2.0, 5.0])?;
        close(&x.max_keepdim(1)?, &[3.0, 6.0])?;
        assert_eq!(x.max_keepdim(1)?.shape(), [2, 1]);
        assert_eq!(x.sum_keepdim(..)?.shape(), [1, 1]);
        let cube = Tensor::arange(device, hologram_core::DType::F32, 0.0, 1.0, 24)?.reshape(&[2, 3, 4])?;
        close(&cube.sum((0, 2))?, &[60.0, 92.0, 124.0])?;
        close(&cube.mean([0, 1])?, &[10.0, 11.0, 12.0, 13.0])?;
        close(&cube.min((-1, -2))?, &[0.0, 12.0])?;
        assert_eq!(cube.sum_all()?.to_scalar::<f32>()?, 276.0);
        close(&x.softmax(-1)?.sum(-1)?, &[1.0, 1.0])?;
        assert_eq!(x.arg_max(-1)?.to_vec::<u32>()?, [2, 2]);
        // Numbers and results on either side.
        close(&(2.0 * &x)?, &[2.0, 4.0, 6.0, 8.0, 10.0, 12.0])?;
        close(&(1.0 / &x)?.slice(1, 0, 1)?, &[1.0, 0.25])?;
        close(&(&x + &x * &x)?, &[2.0, 6.0, 12.0, 20.0, 30.0, 42.0])?;
        close(&(x.clone() - 1.0)?.maximum(2)?, &[2.0, 2.0, 2.0, 3.0, 4.0, 5.0])?;
        assert_eq!(x.gt(3.5)?.to_bools()?, [false, false, false, true, true, true]);
        close(&x.clip(2.0, 5)?, &[2.0, 2.0, 3.0, 4.0, 5.0, 5.0])?;
        // Shapes.
        assert_eq!(x.t()?.shape(), [3, 2]);
        assert_eq!(x.unsqueeze(0)?.unsqueeze(-1)?.shape(), [1, 2, 3, 1]);
        assert_eq!(x.unsqueeze(0)?.squeeze(0)?.shape(), [2, 3]);
        assert_eq!(x.unsqueeze(0)?.unsqueeze(-1)?.squeeze(..)?.shape(), [2, 3]);
        assert_eq!(x.slice(-1, 1, 3)?.to_vec2::<f32>()?, [[2.0, 3.0], [5.0, 6.0]]);
        close(&x.slice(0, 1, 2)?.broadcast_to(&[2, 3])?.contiguous()?.sum(0)?, &[8.0, 10.0, 12.0])?;
        // Types.
        assert_eq!(x.to_dtype(DType::I32)?.to_vec::<i32>()?, [1, 2, 3, 4, 5, 6]);
        // Matrices and vectors.
        let v = Tensor::from_slice(device, &[3], &[1.0f32, 0.0, -1.0])?;
        close(&x.matmul(&v)?, &[-2.0, -2.0])?;
        close(&v.matmul(&x.t()?)?, &[-2.0, -2.0])?;
        assert_eq!(v.matmul(&v)?.to_scalar::<f32>()?, 2.0);
        // Rows by index.
        let ids = Tensor::from_slice(device, &[3], &[1u32, 0, 1])?;
        close(&x.gather(&ids)?.sum(-1)?, &[15.0, 6.0, 15.0])?;
        close(&x.index_select(&ids, 1)?, &[2.0, 1.0, 2.0, 5.0, 4.0, 5.0])?;
        // On another device.
        let other = Executor::open("cpu", None)?;
        close(&(x.to(&other)? + x.t()?.contiguous()?.t()?.to(&other)?)?, &[2.0, 4.0, 6.0, 8.0, 10.0, 12.0])?;
    }
    Ok(())
}

/// Compares products with sums written out.
#[test]
fn attention_is_the_formula() -> Result<()> {
    for device in &tested(false) {
        let (heads, shared, n, m, d, e) = (4, 2, 3, 5, 8, 6);
        let numbers = |count: usize, step: f32| (0..count).map(|i| (i as f32 * step).sin()).collect::<Vec<_>>();
        let (q, k, v) = (numbers(heads * n * d, 0.7), numbers(shared * m * d, 0.3), numbers(shared * m * e, 0.9));
        let tensors = (
            Tensor::from_slice(device, &[heads, n, d], &q)?,
            Tensor::from_slice(device, &[shared, m, d], &k)?,
            Tensor::from_slice(device, &[shared, m, e], &v)?,
        );
        for causal in [false, true] {
            let got = tensors.0.attention(&tensors.1, &tensors.2, &TensorAttention { causal, scale: None })?;
            assert_eq!(got.shape(), [heads, n, e]);
            let mut want = Vec::new();
            for head in 0..heads {
                let of = head / (heads / shared);
                for i in 0..n {
                    let seen = if causal { i + m - n + 1 } else { m };
                    let score = |j: usize| {
                        let dot: f32 = (0..d).map(|x| q[(head * n + i) * d + x] * k[(of * m + j) * d + x]).sum();
                        (dot / (d as f32).sqrt()).exp()
                    };
                    let sum: f32 = (0..seen).map(score).sum();
                    want.extend(
                        (0..e).map(|x| (0..seen).map(|j| score(j) / sum * v[(of * m + j) * e + x]).sum::<f32>()),
                    );
                }
            }
            close(&got, &want)?;
        }
    }
    Ok(())
}

#[test]
fn values_print() -> Result<()> {
    let device = Executor::open("cpu", None)?;
    let shown = |tensor: &Tensor| tensor.to_string();
    assert_eq!(shown(&matrix(&device)?), "[[1.0, 2.0, 3.0],\n [4.0, 5.0, 6.0]]\nTensor(f32[2, 3], cpu)");
    let odd = Tensor::from_slice(&device, &[4], &[0.25f32, -10.5, f32::NAN, f32::INFINITY])?;
    assert_eq!(shown(&odd), "[  0.25, -10.50,    NaN,    inf]\nTensor(f32[4], cpu)");
    assert_eq!(shown(&Tensor::full(&device, DType::F32, &[], 1e-7)?), "1.0000e-7\nTensor(f32[], cpu)");
    assert_eq!(shown(&Tensor::zeros(&device, DType::F32, &[0, 3])?), "[]\nTensor(f32[0, 3], cpu)");
    let truths = Tensor::from_bools(&device, &[2, 1, 1], &[true, false])?;
    assert_eq!(shown(&truths), "[[[ true]],\n\n [[false]]]\nTensor(bool[2, 1, 1], cpu)");
    let long = Tensor::arange(&device, hologram_core::DType::I32, 0.0, 1.0, 2000)?;
    assert_eq!(shown(&long), "[   0,    1,    2, …, 1997, 1998, 1999]\nTensor(i32[2000], cpu)");
    assert_eq!(
        shown(&long.reshape(&[1000, 2])?),
        "[[   0,    1],\n [   2,    3],\n [   4,    5],\n …,\n [1994, 1995],\n [1996, 1997],\n [1998, 1999]]\nTensor(i32[1000, 2], cpu)"
    );
    Ok(())
}

/// Blocks of weights are read as their dequantized values.
#[test]
fn block_formats_are_read_back() -> Result<()> {
    let device = Executor::open("cpu", None)?;
    // Q8_0: a scale of 0.5 and codes 0 to 31.
    let block: Vec<u8> = [0x00, 0x38].into_iter().chain(0..32).collect();
    let tensor = Tensor::from_bytes(&device, DType::Q8_0, &[2, 32], &[block.clone(), block].concat())?;
    let want: Vec<f32> = (0..64).map(|i| (i % 32) as f32 * 0.5).collect();
    assert_eq!(tensor.to_vec::<f32>()?, want);
    assert!(tensor.to_string().starts_with("[[ 0.0,  0.5,  1.0,"));
    assert_eq!(tensor.to_dtype(DType::F16)?.sum_all()?.to_dtype(DType::F32)?.to_scalar::<f32>()?, 496.0);
    Ok(())
}

/// Saved tensors of every type load again; other files are rejected.
#[test]
fn files_round_trip() -> Result<()> {
    let device = Executor::open("cpu", None)?;
    let folder = std::env::temp_dir().join(format!("hologram-tensors-{}", std::process::id()));
    std::fs::create_dir_all(&folder).expect("a folder");
    let x = matrix(&device)?;
    let types = [DType::F32, DType::F16, DType::BF16, DType::U32].into_iter();
    let more = [hologram_core::DType::F64, hologram_core::DType::I64, hologram_core::DType::U8].map(DType::from);
    let mut tensors = std::collections::BTreeMap::new();
    for dtype in types.chain(more) {
        let tensor = x.to_dtype(dtype)?.t()?;
        tensor.save_npy(folder.join("x.npy"))?;
        let loaded = Tensor::load_npy(&device, folder.join("x.npy"))?;
        assert_eq!(loaded.shape(), [3, 2]);
        assert_eq!(loaded.to_string(), tensor.contiguous()?.to_string());
        tensors.insert(dtype.name(), tensor);
    }
    tensors.insert("empty".into(), Tensor::zeros(&device, DType::F32, &[0, 4])?);
    tensors.insert("scalar".into(), Tensor::ones(&device, DType::F32, &[])?);
    Tensor::save_safetensors(&tensors, folder.join("all.safetensors"))?;
    let loaded = Tensor::load_safetensors(&device, folder.join("all.safetensors"))?;
    assert_eq!(loaded.keys().collect::<Vec<_>>(), tensors.keys().collect::<Vec<_>>());
    for (name, tensor) in &tensors {
        assert_eq!(loaded[name].to_string(), tensor.contiguous()?.to_string(), "{name}");
    }
    let text = folder.join("text");
    std::fs::write(&text, "no tensors").expect("a file");
    for error in [
        Tensor::load_npy(&device, &text).err(),
        Tensor::load_safetensors(&device, &text).err(),
        Tensor::load_npy(&device, folder.join("none.npy")).err(),
        x.save_npy(folder.join("none/x.npy")).err(),
    ] {
        let error = error.expect("an error").to_string();
        assert!(error.starts_with("tensor: cannot "), "{error}");
    }
    let blocks = Tensor::from_bytes(&device, DType::Q8_0, &[32], &[0; 34])?;
    assert!(blocks.save_npy(folder.join("q.npy")).is_err());
    std::fs::remove_dir_all(folder).expect("the folder");
    Ok(())
}

/// Each mistake is reported in one sentence.
#[test]
fn mistakes_are_explained() -> Result<()> {
    let device = Executor::open("cpu", None)?;
    let x = matrix(&device)?;
    let long = Tensor::zeros(&device, DType::F32, &[7])?;
    for (result, want) in [
        (x.sum(2), "operation reduce: there is no dimension 2: it has 2 (operands: f32[2, 3])"),
        (x.sum((0, -2)), "operation reduce: dimension 0 is named twice (operands: f32[2, 3])"),
        (x.squeeze(0), "operation squeeze: dimension 0 has size 2, not 1 (operands: f32[2, 3])"),
        (x.reshape(&[7, 7]), "operation reshape: [7, 7] has 49 elements, not 6 (operands: f32[2, 3])"),
        (&x + long.exp(), "operation add: "),
        (&x + x.reshape(&[4]), "operation reshape: [4] has 4 elements, not 6 (operands: f32[2, 3])"),
        (Tensor::cat(&[], 0), "tensor: cat: there are no tensors"),
        (x.to_dtype(DType::Q8_0), "operation to_dtype: "),
        (Tensor::full(&device, DType::Q4_0, &[32], 0.0), "tensor: full: Q4_0 is no type of plain elements"),
        (x.attention(&x, &x, &TensorAttention::default()), "operation attention: takes q [.., h, n, d]"),
    ] {
        let error = result.err().map(|e| e.to_string()).unwrap_or_default();
        assert!(error.starts_with(want), "{error}\n{want}");
    }
    Ok(())
}

#[test]
fn rows_leave_a_tensor_and_come_back() -> Result<()> {
    let executor = Executor::open("cpu", Some(1))?;
    // Elements in one part, and codes and scales in two; rows of the first dimension have several of the last.
    for format in [DType::F32, DType::F16, DType::F8, DType::Q8Planes] {
        let (shape, bytes) = ([5usize, 3, 64], format.bytes(15, 64).unwrap());
        let content: Vec<u8> = (0..bytes).map(|i| (i * 7 % 251) as u8).collect();
        let tensor = Tensor::from_bytes(&executor, format, &shape, &content)?;
        let other = Tensor::from_bytes(&executor, format, &shape, &vec![0; bytes])?;
        let (mut rows, mut got, mut want) = (Vec::new(), Vec::new(), Vec::new());
        tensor.read_rows(1..4, &mut rows)?;
        assert_eq!(rows.len(), 3 * tensor.row_bytes()?, "{}", format.name());
        other.write_rows(2..5, &rows)?;
        other.read_rows(3..4, &mut got)?;
        tensor.read_rows(2..3, &mut want)?;
        assert!(got == want && got.iter().any(|byte| *byte != 0), "{}", format.name());
        got.clear();
        other.read_rows(0..2, &mut got)?;
        assert!(got.iter().all(|byte| *byte == 0), "{}: other rows changed", format.name());
        assert!(tensor.read_rows(4..6, &mut rows).is_err() && other.write_rows(0..1, &rows).is_err());
    }
    let view = Tensor::from_slice(&executor, &[2, 2], &[1.0f32; 4])?.transpose()?;
    assert!(view.read_rows(0..1, &mut Vec::new()).is_err());
    Ok(())
}
