// Runs the entries of a bisect-litert export inside an app and writes what their outputs held.
//
// Call it off the main thread, for example from an instrumented test or a worker:
//
//   RunEntries(File(filesDir, "round1"), File(filesDir, "results")).runAll()
//
// An entry that kills the process leaves its "started" file behind; called again after a restart, this goes on with the
// entries that were not started yet.

import android.os.Build
import android.system.Os
import com.google.ai.edge.litert.Accelerator
import com.google.ai.edge.litert.CompiledModel
import com.google.ai.edge.litert.Environment
import com.google.ai.edge.litert.TensorBuffer
import java.io.File
import java.nio.ByteBuffer
import java.nio.ByteOrder
import org.json.JSONArray
import org.json.JSONObject

class RunEntries(private val round: File, private val results: File) {

  private val manifest = JSONObject(File(round, "manifest.json").readText())
  private val unwritten: Int = java.lang.Long.decode(manifest.getJSONObject("sentinels").getString("float32")).toInt()

  fun runAll() {
    results.mkdirs()
    val about = JSONObject()
    about.put("device", "${Build.MANUFACTURER} ${Build.MODEL}")
    about.put("platform", "Android ${Build.VERSION.RELEASE} ${Build.SUPPORTED_ABIS.first()}")
    about.put("gpu", Build.HARDWARE) // replace by the GPU's name if you know it
    File(results, "device.json").writeText(about.toString())
    Environment.create().use { environment ->
      for (entry in objects(manifest.getJSONArray("entries"))) {
        val folder = File(results, entry.getString("name"))
        val started = File(folder, "started")
        // What another export left here is not this one's.
        if (started.exists() && started.readText() == entry.getString("id")) continue
        folder.deleteRecursively()
        folder.mkdirs()
        started.writeText(entry.getString("id"))
        try {
          run(entry, environment)
        } catch (error: Exception) {
          val status = JSONObject()
          status.put("status", "failed")
          status.put("error", error.toString())
          File(folder, "status.json").writeText(status.toString())
        }
      }
    }
  }

  private fun run(entry: JSONObject, environment: Environment) {
    val variables = entry.getJSONObject("environment")
    val names = variables.keys().asSequence().toList()
    names.forEach { Os.setenv(it, variables.getString(it), true) }
    try {
      compile(entry, environment).use { model -> run(entry, model) }
    } finally {
      names.forEach { Os.unsetenv(it) }
    }
  }

  private fun compile(entry: JSONObject, environment: Environment): CompiledModel {
    val path = File(round, entry.getString("model")).path
    try {
      return CompiledModel.create(path, options(entry, "accelerators"), environment)
    } catch (refused: Exception) {
      if (entry.getJSONArray("fallback").length() == 0) throw refused
    }
    return CompiledModel.create(path, options(entry, "fallback"), environment)
  }

  private fun options(entry: JSONObject, accelerators: String): CompiledModel.Options {
    val wanted = entry.getJSONArray(accelerators)
    val set = (0 until wanted.length()).map { if (wanted.getString(it) == "gpu") Accelerator.GPU else Accelerator.CPU }
    val options = CompiledModel.Options(*set.toTypedArray())
    if (entry.getString("precision") == "fp32") {
      options.gpuOptions = CompiledModel.GpuOptions(precision = CompiledModel.GpuOptions.Precision.FP32)
    }
    return options
  }

  private fun run(entry: JSONObject, model: CompiledModel) {
    val signature = entry.getString("signature")
    val inputs = LinkedHashMap<String, TensorBuffer>()
    val outputs = LinkedHashMap<String, TensorBuffer>()
    try {
      for (port in objects(entry.getJSONArray("inputs"))) {
        val name = port.getString("name")
        val buffer = model.createInputBuffer(name, signature)
        inputs[name] = buffer
        write(buffer, port.getString("dtype"), File(round, port.getString("raw")).readBytes())
      }
      for (port in objects(entry.getJSONArray("outputs"))) {
        val name = port.getString("name")
        val buffer = model.createOutputBuffer(name, signature)
        outputs[name] = buffer
        if (port.getString("dtype") == "float32") { // shows what no kernel writes
          buffer.writeFloat(FloatArray(port.getInt("bytes") / 4) { java.lang.Float.intBitsToFloat(unwritten) })
        }
      }
      model.run(inputs, outputs, signature)
      for (port in objects(entry.getJSONArray("outputs"))) {
        val bytes = read(outputs.getValue(port.getString("name")), port.getString("dtype"))
        // A buffer can be longer than its tensor.
        File(results, port.getString("file")).writeBytes(bytes.copyOf(port.getInt("bytes")))
      }
    } finally {
      (inputs.values + outputs.values).forEach { it.close() }
    }
  }

  private fun write(buffer: TensorBuffer, dtype: String, bytes: ByteArray) {
    val content = ByteBuffer.wrap(bytes).order(ByteOrder.LITTLE_ENDIAN)
    when (dtype) {
      "float32" -> buffer.writeFloat(FloatArray(bytes.size / 4).also { content.asFloatBuffer().get(it) })
      "int32" -> buffer.writeInt(IntArray(bytes.size / 4).also { content.asIntBuffer().get(it) })
      "int64" -> buffer.writeLong(LongArray(bytes.size / 8).also { content.asLongBuffer().get(it) })
      "int8", "uint8" -> buffer.writeInt8(bytes)
      "bool" -> buffer.writeBoolean(BooleanArray(bytes.size) { bytes[it] != 0.toByte() })
      else -> throw IllegalArgumentException("LiteRT's Kotlin API has no $dtype")
    }
  }

  private fun read(buffer: TensorBuffer, dtype: String): ByteArray {
    when (dtype) {
      "float32" -> {
        val values = buffer.readFloat()
        // Bit by bit: a plain put may change which NaN it is.
        return bytes(4 * values.size) { content -> values.forEach { content.putInt(java.lang.Float.floatToRawIntBits(it)) } }
      }
      "int32" -> return buffer.readInt().let { values -> bytes(4 * values.size) { it.asIntBuffer().put(values) } }
      "int64" -> return buffer.readLong().let { values -> bytes(8 * values.size) { it.asLongBuffer().put(values) } }
      "int8", "uint8" -> return buffer.readInt8()
      "bool" -> return buffer.readBoolean().let { values -> ByteArray(values.size) { if (values[it]) 1 else 0 } }
      else -> throw IllegalArgumentException("LiteRT's Kotlin API has no $dtype")
    }
  }

  private fun bytes(size: Int, fill: (ByteBuffer) -> Unit): ByteArray {
    val content = ByteBuffer.allocate(size).order(ByteOrder.LITTLE_ENDIAN)
    fill(content)
    return content.array()
  }

  private fun objects(array: JSONArray): List<JSONObject> = (0 until array.length()).map { array.getJSONObject(it) }
}
