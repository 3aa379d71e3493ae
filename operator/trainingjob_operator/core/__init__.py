"""The core: values in, values out. Every rule about jobs lives here and needs no cluster to be tried."""
