//! The number of a GPU's cores, which Metal does not report: the system's registry of devices does.

/// The number of cores; `None` where the system does not say.
#[cfg(any(target_os = "macos", feature = "host-double"))]
pub(super) fn cores() -> Option<u32> {
    use std::ffi::{c_char, c_int, c_void};

    use objc2::msg_send;
    use objc2::rc::{Retained, autoreleasepool};
    use objc2::runtime::{AnyClass, AnyObject};
    use objc2_foundation::NSString;

    // Dictionaries, strings and numbers of Core Foundation are objects of Foundation.
    #[cfg_attr(target_os = "macos", link(name = "IOKit", kind = "framework"))]
    unsafe extern "C" {
        /// A new dictionary that matches the services of a class and of those derived from it.
        fn IOServiceMatching(name: *const c_char) -> *mut c_void;
        /// The first service that matches, or 0; takes the dictionary.
        fn IOServiceGetMatchingService(port: u32, matching: *mut c_void) -> u32;
        /// A new reference to a property, or null.
        fn IORegistryEntryCreateCFProperty(
            entry: u32,
            key: *const NSString,
            allocator: *const c_void,
            options: u32,
        ) -> *mut AnyObject;
        safe fn IOObjectRelease(object: u32) -> c_int;
    }

    autoreleasepool(|_| {
        // SAFETY: a string of C.
        let matching = unsafe { IOServiceMatching(c"AGXAccelerator".as_ptr()) };
        // SAFETY: the dictionary is this function's to give away; port 0 is the default.
        let service = unsafe { IOServiceGetMatchingService(0, matching) };
        if service == 0 {
            return None;
        }
        let key = NSString::from_str("gpu-core-count");
        // SAFETY: a service, a string that lives until the call returns, the default allocator, no options.
        let property = unsafe { IORegistryEntryCreateCFProperty(service, &*key, std::ptr::null(), 0) };
        IOObjectRelease(service);
        // SAFETY: null, or an object with a reference that is this function's.
        let property = unsafe { Retained::from_raw(property) }?;
        let number = AnyClass::get(c"NSNumber")?;
        // SAFETY: every object has this method.
        let is_number: bool = unsafe { msg_send![&*property, isKindOfClass: number] };
        if !is_number {
            return None;
        }
        // SAFETY: a number has this method, which returns an `unsigned int`.
        let count: u32 = unsafe { msg_send![&*property, unsignedIntValue] };
        (1..=MOST).contains(&count).then_some(count)
    })
}

/// More cores than a GPU could have: a count above is none.
#[cfg(any(target_os = "macos", feature = "host-double"))]
const MOST: u32 = 1024;

/// The number of cores, which iOS does not say.
#[cfg(not(any(target_os = "macos", feature = "host-double")))]
pub(super) fn cores() -> Option<u32> {
    None
}
