// Tensors from Go without a C compiler: purego opens the library at run time.
// Usage: CGO_ENABLED=0 go run . path/to/libhologram.so
package main

import (
	"fmt"
	"os"
	"runtime"
	"unsafe"

	"github.com/ebitengine/purego"
)

const typeF32 = 11

var (
	lastError   func() string
	openDevice  func(name string, threads uintptr, device *uintptr) int32
	freeDevice  func(device uintptr)
	newTensor   func(device uintptr, kind int32, shape *int64, rank uintptr, data unsafe.Pointer, bytes uintptr, tensor *uintptr) int32
	operation   func(device uintptr, name string, operands *uintptr, count uintptr, options uintptr, result *uintptr) int32
	readTensor  func(tensor uintptr, data unsafe.Pointer, bytes uintptr) int32
	freeTensor  func(tensor uintptr)
	libraryName func() string
)

func check(status int32) {
	if status != 0 {
		fmt.Fprintln(os.Stderr, lastError())
		os.Exit(1)
	}
}

func main() {
	// A failure's message belongs to the thread.
	runtime.LockOSThread()
	if len(os.Args) != 2 {
		fmt.Fprintln(os.Stderr, "usage: go run . LIBRARY")
		os.Exit(2)
	}
	library, err := purego.Dlopen(os.Args[1], purego.RTLD_NOW|purego.RTLD_LOCAL)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	for name, function := range map[string]any{
		"hologram_last_error": &lastError, "hologram_version": &libraryName,
		"hologram_device_open": &openDevice, "hologram_device_release": &freeDevice,
		"hologram_tensor_new": &newTensor, "hologram_operation": &operation,
		"hologram_tensor_read": &readTensor, "hologram_tensor_release": &freeTensor,
	} {
		purego.RegisterLibFunc(function, library, name)
	}

	var device, x, y uintptr
	check(openDevice("cpu", 0, &device))
	numbers, shape := []float32{1, 2, 3, 4}, []int64{4}
	check(newTensor(device, typeF32, &shape[0], 1, unsafe.Pointer(&numbers[0]), 16, &x))
	operands := []uintptr{x, x}
	check(operation(device, "mul", &operands[0], 2, 0, &y))
	check(readTensor(y, unsafe.Pointer(&numbers[0]), 16))
	fmt.Println(libraryName(), numbers)
	freeTensor(x)
	freeTensor(y)
	freeDevice(device)
}
