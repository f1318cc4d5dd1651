//! Tests of behaviour that only this device has: errors that lose it, exhausted memory, measurements. They need an
//! NVIDIA GPU.

use std::sync::{Arc, Mutex, PoisonError};

use hologram_device::host::{ONE_BY_ONE, rules_of_program};
use hologram_device::{Backend, BackendError, Binding, Launch, LaunchConfig, Pipeline};
use hologram_isa::parse;

use super::backend::{CudaBackend, CudaOptions, ProgramPipeline};

const STORE: &str = "kernel store_one(x: buffer<u32, readwrite>) workgroup(1) {
  store.u32 x[0], 1
}";

/// One test takes all of the device's memory, so they run one at a time.
static TURN: Mutex<()> = Mutex::new(());

/// A pipeline that looks like a program's and stops the device.
fn trap(device: &CudaBackend) -> Pipeline {
    let text = ".version 7.8\n.target sm_80\n.address_size 64\n\
                .visible .entry stop(.param .u64 a, .param .u32 b, .param .u64 c)\n{\n\ttrap;\n\tret;\n}\n";
    let function = device.modules.program("stop", text, "stop").unwrap();
    let program = Arc::new(parse(STORE).unwrap());
    let rules = rules_of_program(&program);
    Pipeline::program("stop", ProgramPipeline { function, program, rules })
}

fn lose_the_device() {
    let device = CudaBackend::new(0).unwrap();
    let other = CudaBackend::new(0).unwrap();
    let x = device.allocate_buffer(4).unwrap();
    let launch =
        |pipeline| Launch { pipeline, bindings: vec![Binding::whole(&x)], config: LaunchConfig { grid: [1, 1, 1] } };
    let store = device.compile(&parse(STORE).unwrap()).unwrap();
    device.submit(&device.record(&[launch(store.clone())]).unwrap()).unwrap();
    device.synchronize().unwrap();
    let broken = device.modules.program("nonsense", ".version 7.8\n.target sm_80\nnonsense\n", "x").err().unwrap();
    assert!(broken.to_string().contains("compiling nonsense: ptxas") && device.is_available(), "{broken}");
    // Among several launches the failing one is known only if they run one by one.
    let before_and_after = usize::from(std::env::var_os(ONE_BY_ONE).is_some());
    let stores = vec![launch(store.clone()); before_and_after];
    let bad = device.record(&[&stores[..], &[launch(trap(&device))], &stores[..]].concat()).unwrap();
    let error = device.submit(&bad).and_then(|_| device.synchronize()).unwrap_err();
    assert!(matches!(&error, BackendError::Kernel { kernel, .. } if kernel == "stop"), "{error}");
    assert!(error.to_string().contains("lost") && !device.is_available(), "{error}");
    let lost = [
        device.synchronize().err(),
        device.submit(&bad).err(),
        device.record(&[launch(store)]).err(),
        device.allocate_buffer(1 << 20).err(),
        device.copy_to_buffer(&x, 0, &[1]).err(),
        device.copy_from_buffer(&x, 0, &mut [1]).err(),
        device.measure().copy_bandwidth().err(),
    ];
    for error in lost {
        let error = error.unwrap();
        assert!(matches!(error, BackendError::Unavailable { .. }) && error.to_string().contains("lost"), "{error}");
    }
    // A second handle to the same device reports the loss at its next call.
    assert!(other.allocate_buffer(1 << 20).is_err());
}

/// Runs in a process of its own: the device is lost to the whole process.
#[test]
#[ignore = "needs an NVIDIA GPU, where tools/gpu/check.py runs it"]
fn a_lost_device_says_so_with_the_kernels_name() {
    const CHILD: &str = "HOLOGRAM_TEST_LOSES_THE_DEVICE";
    if std::env::var_os(CHILD).is_some() {
        return lose_the_device();
    }
    let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    let test = "tests::a_lost_device_says_so_with_the_kernels_name";
    for variables in [&[CHILD][..], &[CHILD, ONE_BY_ONE]] {
        let child = std::process::Command::new(std::env::current_exe().unwrap())
            .args(["--ignored", "--exact", "--nocapture", test])
            .envs(variables.iter().map(|name| (name, "1")))
            .output()
            .unwrap();
        let text = [child.stdout, child.stderr].concat();
        let text = String::from_utf8_lossy(&text);
        assert!(child.status.success() && text.contains("1 passed"), "{variables:?}: {text}");
    }
}

#[test]
#[ignore = "needs an NVIDIA GPU, where tools/gpu/check.py runs it"]
fn memory_is_capped_counted_and_given_back() {
    let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    let device =
        CudaBackend::with_options(CudaOptions { ordinal: 0, memory_cap: Some(64 << 20), ..CudaOptions::default() })
            .unwrap();
    assert_eq!(device.available_memory(), Some(64 << 20));
    let a = device.allocate_buffer(40 << 20).unwrap();
    assert_eq!(device.available_memory(), Some(24 << 20));
    let error = device.allocate_buffer(30 << 20).unwrap_err().to_string();
    assert!(error.contains("the cap is 67108864") && error.contains(" free"), "{error}");
    drop(a);
    // The cache frees its memory for another size.
    let b = device.allocate_buffer(60 << 20).unwrap();
    let metrics = device.measure().metrics().memory;
    assert_eq!((metrics.live, metrics.cached, metrics.hits, metrics.misses), (60 << 20, 0, 0, 2));
    drop(b);
    // All of the device's memory: the error names the request and the free bytes, and small allocations still work.
    let device = CudaBackend::new(0).unwrap();
    let (mut all, piece) = (Vec::new(), 8usize << 30);
    let error = loop {
        match device.allocate_buffer(piece) {
            Ok(buffer) => all.push(buffer),
            Err(error) => break error.to_string(),
        }
    };
    assert!(error.contains(&format!("cannot allocate {piece} bytes")) && error.contains(" free"), "{error}");
    let x = device.allocate_buffer(1 << 20).unwrap();
    device.copy_to_buffer(&x, 0, &[7; 9]).unwrap();
    let count = all.len();
    all.clear();
    // Blocks of another size: the cache frees its own to make room.
    let large = piece / 2 * count;
    let whole = device.allocate_buffer(large).unwrap();
    let mut back = [0; 9];
    device.copy_from_buffer(&x, 0, &mut back).unwrap();
    assert_eq!((back, whole.bytes()), ([7; 9], large));
    // A second device of the same GPU has its own buffers.
    let second = CudaBackend::new(0).unwrap();
    let error = second.copy_to_buffer(&x, 0, &[1]).unwrap_err();
    assert!(error.to_string().contains("the buffer belongs to cuda:0"), "{error}");
}

/// Asynchronous calls whose results are dropped do not fill the memory.
#[test]
#[ignore = "needs an NVIDIA GPU, where tools/gpu/check.py runs it"]
fn memory_of_work_that_is_under_way_serves_later_work() {
    let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    let device =
        CudaBackend::with_options(CudaOptions { ordinal: 0, memory_cap: Some(256 << 20), ..CudaOptions::default() })
            .unwrap();
    let store = device.compile(&parse(STORE).unwrap()).unwrap();
    let run = |x: &hologram_device::Buffer| {
        let bindings = vec![Binding::whole(x)];
        let launch = Launch { pipeline: store.clone(), bindings, config: LaunchConfig { grid: [1, 1, 1] } };
        device.submit(&device.record(&[launch]).unwrap()).unwrap();
    };
    for _ in 0..100 {
        run(&device.allocate_buffer(64 << 20).unwrap());
    }
    let memory = device.measure().metrics().memory;
    assert!(memory.live + memory.cached <= 128 << 20, "{memory:?}");
    // Of another size: what the queue still keeps is waited for.
    let all = device.allocate_buffer(250 << 20).unwrap();
    run(&all);
    let mut back = [0; 4];
    device.copy_from_buffer(&all, 0, &mut back).unwrap();
    assert_eq!(back, 1u32.to_le_bytes());
}

#[test]
#[ignore = "needs an NVIDIA GPU, where tools/gpu/check.py runs it"]
fn profiles_and_bandwidth_are_measured() {
    let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    let device = CudaBackend::new(0).unwrap();
    let x = device.allocate_buffer(4).unwrap();
    let store = device.compile(&parse(STORE).unwrap()).unwrap();
    let bindings = vec![Binding::whole(&x)];
    let launch = Launch { pipeline: store, bindings, config: LaunchConfig { grid: [1, 1, 1] } };
    let list = device.record(&[launch.clone(), launch.clone(), launch]).unwrap();
    let times = device.measure().profile(&list).unwrap();
    assert_eq!(times.len(), 3);
    assert!(times.iter().all(|(name, s)| &**name == "store_one" && (1e-7..1e-3).contains(s)), "{times:?}");
    let bandwidth = device.measure().copy_bandwidth().unwrap();
    assert!((1e11..2e13).contains(&bandwidth), "{bandwidth}");
}
