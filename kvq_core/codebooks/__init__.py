"""codebooks"""
