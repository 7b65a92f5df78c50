"""lm_eval"""
