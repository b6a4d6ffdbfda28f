; Report 004's decoder as `clang -O0` would emit it for a native library: every variable in memory, nothing folded.
; rANS with one 32-bit state (lower bound 2^23, 12-bit frequencies, byte renormalization), linear search over 256
; symbols, then the predictor undone: LEFT and a second difference, row by row.

declare ptr @malloc(i64)
declare void @free(ptr)
declare ptr @memcpy(ptr, ptr, i64)

; uint32 x = first four bytes of stream; for (i = 0; i < count; i++) out[i] = the symbol that owns slot x % 4096, ...
define void @unpack(ptr %stream, i64 %bytes, ptr %frequencies, ptr %out, i64 %rows, i64 %columns) {
entry:
  %x = alloca i32
  %at = alloca ptr
  %i = alloca i64
  %slot = alloca i32
  %start = alloca i32
  %symbol = alloca i64
  %count = mul i64 %rows, %columns
  %x0 = load i32, ptr %stream, align 1
  store i32 %x0, ptr %x
  %at0 = getelementptr i8, ptr %stream, i64 4
  store ptr %at0, ptr %at
  store i64 0, ptr %i
  br label %each
each:
  %i1 = load i64, ptr %i
  %more = icmp slt i64 %i1, %count
  br i1 %more, label %find, label %predictor
find:
  %x1 = load i32, ptr %x
  %slot1 = and i32 %x1, 4095
  store i32 %slot1, ptr %slot
  store i32 0, ptr %start
  store i64 0, ptr %symbol
  br label %search
search: ; while (start + frequencies[symbol] <= slot) start += frequencies[symbol++];
  %symbol1 = load i64, ptr %symbol
  %entry1 = getelementptr i16, ptr %frequencies, i64 %symbol1
  %frequency1 = load i16, ptr %entry1
  %wide1 = zext i16 %frequency1 to i32
  %start1 = load i32, ptr %start
  %next1 = add i32 %start1, %wide1
  %slot2 = load i32, ptr %slot
  %past = icmp ule i32 %next1, %slot2
  br i1 %past, label %step, label %found
step:
  %symbol2 = load i64, ptr %symbol
  %entry2 = getelementptr i16, ptr %frequencies, i64 %symbol2
  %frequency2 = load i16, ptr %entry2
  %wide2 = zext i16 %frequency2 to i32
  %start2 = load i32, ptr %start
  %start3 = add i32 %start2, %wide2
  store i32 %start3, ptr %start
  %symbol3 = load i64, ptr %symbol
  %symbol4 = add i64 %symbol3, 1
  store i64 %symbol4, ptr %symbol
  br label %search
found: ; out[i] = symbol; x = frequencies[symbol] * (x >> 12) + slot - start;
  %symbol5 = load i64, ptr %symbol
  %byte = trunc i64 %symbol5 to i8
  %i2 = load i64, ptr %i
  %place = getelementptr i8, ptr %out, i64 %i2
  store i8 %byte, ptr %place
  %entry3 = getelementptr i16, ptr %frequencies, i64 %symbol5
  %frequency3 = load i16, ptr %entry3
  %wide3 = zext i16 %frequency3 to i32
  %x2 = load i32, ptr %x
  %high = lshr i32 %x2, 12
  %product = mul i32 %wide3, %high
  %slot3 = load i32, ptr %slot
  %start4 = load i32, ptr %start
  %offset = sub i32 %slot3, %start4
  %x3 = add i32 %product, %offset
  store i32 %x3, ptr %x
  br label %refill
refill: ; while (x < 1 << 23) x = x << 8 | *at++;
  %x4 = load i32, ptr %x
  %low = icmp ult i32 %x4, 8388608
  br i1 %low, label %byte_in, label %next
byte_in:
  %at1 = load ptr, ptr %at
  %unit = load i8, ptr %at1
  %at2 = getelementptr i8, ptr %at1, i64 1
  store ptr %at2, ptr %at
  %x5 = load i32, ptr %x
  %shifted = shl i32 %x5, 8
  %wide4 = zext i8 %unit to i32
  %x6 = or i32 %shifted, %wide4
  store i32 %x6, ptr %x
  br label %refill
next:
  %i3 = load i64, ptr %i
  %i4 = add i64 %i3, 1
  store i64 %i4, ptr %i
  br label %each
predictor:
  call void @undo(ptr %out, i64 %rows, i64 %columns)
  call void @undo(ptr %out, i64 %rows, i64 %columns)
  ret void
}

; Running sums modulo 256 of every row, in place.
define void @undo(ptr %out, i64 %rows, i64 %columns) {
entry:
  %i = alloca i64
  %sum = alloca i8
  %count = mul i64 %rows, %columns
  store i64 0, ptr %i
  store i8 0, ptr %sum
  br label %each
each:
  %i1 = load i64, ptr %i
  %more = icmp slt i64 %i1, %count
  br i1 %more, label %body, label %done
body:
  %column = urem i64 %i1, %columns
  %first = icmp eq i64 %column, 0
  br i1 %first, label %reset, label %add
reset:
  store i8 0, ptr %sum
  br label %add
add:
  %i2 = load i64, ptr %i
  %place = getelementptr i8, ptr %out, i64 %i2
  %value = load i8, ptr %place
  %before = load i8, ptr %sum
  %after = add i8 %before, %value
  store i8 %after, ptr %sum
  store i8 %after, ptr %place
  %i3 = add i64 %i2, 1
  store i64 %i3, ptr %i
  br label %each
done:
  ret void
}

; The same with all that a careless library does on top: a context made for the tile, its bytes copied in, values copied out.
define void @unpack_in_context(ptr %stream, i64 %bytes, ptr %frequencies, ptr %out, i64 %rows, i64 %columns) {
  %count = mul i64 %rows, %columns
  %context = call ptr @malloc(i64 512)
  %input = call ptr @malloc(i64 %bytes)
  %output = call ptr @malloc(i64 %count)
  %1 = call ptr @memcpy(ptr %context, ptr %frequencies, i64 512)
  %2 = call ptr @memcpy(ptr %input, ptr %stream, i64 %bytes)
  call void @unpack(ptr %input, i64 %bytes, ptr %context, ptr %output, i64 %rows, i64 %columns)
  %3 = call ptr @memcpy(ptr %out, ptr %output, i64 %count)
  call void @free(ptr %context)
  call void @free(ptr %input)
  call void @free(ptr %output)
  ret void
}
