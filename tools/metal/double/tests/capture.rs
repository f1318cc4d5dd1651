//! Frame captures: what a document has, and what is refused.

use std::sync::Arc;

use hologram_backends::{Backend, Binding, Launch, LaunchConfig, open};
use hologram_isa::parse;

const PROGRAM: &str = "kernel one(out: buffer<u32, write>) workgroup(1) {\n  store.u32 out[0], 7\n}\n";

/// In one test: the environment is the process's.
#[test]
fn a_capture_has_what_was_submitted_meanwhile() {
    let device: Arc<dyn Backend> = open("metal", None).unwrap();
    let folder = std::env::temp_dir().join(format!("hologram-capture-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let path = folder.join("steps.gputrace");

    let mut worked = false;
    let error = device.measure().capture(&path, &mut || worked = true).unwrap_err().to_string();
    assert!(error.contains("METAL_CAPTURE_ENABLED=1 is set in the environment"), "{error}");
    assert!(!worked && !path.exists());

    // SAFETY: the test is the only one of its process.
    unsafe { std::env::set_var("METAL_CAPTURE_ENABLED", "1") };
    let out = device.allocate_buffer(256).unwrap();
    let pipeline = device.compile(&parse(PROGRAM).unwrap()).unwrap();
    let bindings = vec![Binding::Buffer { buffer: out.clone(), range: 0..4 }];
    let list = device.record(&[Launch { pipeline, bindings, config: LaunchConfig { grid: [1, 1, 1] } }]).unwrap();
    // From the second run on the next is encoded ahead: before a capture, where it would be missing from it.
    for _ in 0..3 {
        device.submit(&list).unwrap();
    }
    let mut event = None;
    let mut work = || {
        device.submit(&list).unwrap();
        event = Some(device.submit(&list).unwrap());
    };
    device.measure().capture(&path, &mut work).unwrap();
    assert_eq!(std::fs::read_to_string(&path).unwrap(), "2 command buffers");
    device.wait(event.unwrap()).unwrap();
    device.submit(&list).unwrap();

    // A second capture within a capture, and a document that is there.
    let other = folder.join("other.gputrace");
    let mut inner = None;
    device.measure().capture(&other, &mut || inner = Some(device.measure().capture(&folder.join("third.gputrace"), &mut || ()))).unwrap();
    let error = inner.unwrap().unwrap_err().to_string();
    assert!(error.contains("already in progress"), "{error}");
    let error = device.measure().capture(&path, &mut || ()).unwrap_err().to_string();
    assert!(error.contains("steps.gputrace") && error.contains("something is there"), "{error}");

    drop((device, out, list));
    assert_eq!(metal_double::live_objects(), 0);
    std::fs::remove_dir_all(folder).unwrap();
}
