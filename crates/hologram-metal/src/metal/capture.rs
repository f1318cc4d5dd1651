//! Frame captures: the GPU's commands in a document that Xcode opens.

use std::path::Path;

use hologram_device::Result;
use objc2::rc::autoreleasepool;
use objc2_foundation::{NSString, NSURL};
use objc2_metal::{MTLCaptureDescriptor, MTLCaptureDestination, MTLCaptureManager};

use super::device::Device;

/// A running capture of a device; dropping it ends the capture.
pub(super) struct Capture(());

impl Capture {
    /// Begins a capture of the device into a new document.
    ///
    /// # Errors
    /// [`BackendError::Device`](hologram_device::BackendError::Device) with the system's reason.
    pub(super) fn begin(device: &Device, path: &Path) -> Result<Capture> {
        let refused = |reason: &str| device.error(&format!("capturing into {}", path.display()), reason);
        let text = path.to_str().ok_or_else(|| refused("the name is not UTF-8"))?;
        autoreleasepool(|_| {
            // SAFETY: the manager is the process's own, and any thread may use it.
            let manager = unsafe { MTLCaptureManager::sharedCaptureManager() };
            if !manager.supportsDestination(MTLCaptureDestination::GPUTraceDocument) {
                return Err(refused(
                    "the system allows captures where METAL_CAPTURE_ENABLED=1 is set in the environment",
                ));
            }
            let descriptor = MTLCaptureDescriptor::new();
            // SAFETY: a device is a valid capture object.
            unsafe { descriptor.setCaptureObject(Some(device.raw.as_ref())) };
            descriptor.setDestination(MTLCaptureDestination::GPUTraceDocument);
            descriptor.setOutputURL(Some(&NSURL::fileURLWithPath(&NSString::from_str(text))));
            let started = manager.startCaptureWithDescriptor_error(&descriptor);
            started.map_err(|e| refused(e.localizedDescription().to_string().trim()))?;
            Ok(Capture(()))
        })
    }
}

impl Drop for Capture {
    fn drop(&mut self) {
        autoreleasepool(|_| {
            // SAFETY: the manager is the process's own, and any thread may use it.
            unsafe { MTLCaptureManager::sharedCaptureManager() }.stopCapture();
        });
    }
}
