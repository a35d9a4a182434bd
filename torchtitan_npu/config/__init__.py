"""torchtitan's configuration with NPU fields added by subclassing, and the presets of converters."""
