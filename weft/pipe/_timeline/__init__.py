"""The timeline of a pipeline: recording, figures, the picture and the trace."""
